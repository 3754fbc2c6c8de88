//! Texts that must not grow beyond what carries them.

/// `text`, cut between characters after at most `bytes` bytes; an ellipsis then says so.
pub(crate) fn shortened(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_one_that_fits_is_left_alone() {
        assert_eq!(shortened("aüb".to_owned(), 4), "aüb");
        assert_eq!(shortened("aüb".to_owned(), 3), "aü…");
        assert_eq!(shortened("aüb".to_owned(), 2), "a…");
    }
}
