//! User input in messages: quoted and truncated, so that the length of a message is bounded.

use std::fmt;

/// Number of characters of a value that are shown. All valid values of a spec are shorter, except label keys.
const MOST: usize = 80;

/// Displays a text in quotes, with escapes, truncated after its first 80 characters.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(MOST) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?}… ({} bytes)", &self.0[..end], self.0.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Quoted;

    #[test]
    fn a_short_text_is_shown_whole_and_a_long_one_is_cut() {
        assert_eq!(Quoted("a \"b\"\n").to_string(), r#""a \"b\"\n""#);
        assert_eq!(Quoted(&"ä".repeat(80)).to_string(), format!("\"{}\"", "ä".repeat(80)));
        assert_eq!(Quoted(&"ä".repeat(81)).to_string(), format!("\"{}\"… (162 bytes)", "ä".repeat(80)));
    }
}
