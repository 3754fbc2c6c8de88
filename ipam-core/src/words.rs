//! Numbers and lists in sentences.

use std::fmt::Display;

/// The number and its noun: `one` for 1, else `many`. So no message contains "1 nodes".
pub fn counted(count: impl Display, one: &str, many: &str) -> String {
    let number = count.to_string();
    let noun = if number == "1" { one } else { many };
    format!("{number} {noun}")
}

/// The first `most` of the items, and how many more there are: `a, b and 3 more`.
pub fn listed(mut items: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let named = items.by_ref().take(most).collect::<Vec<_>>().join(", ");
    match items.len() {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::{counted, listed};

    #[test]
    fn a_list_names_the_first_and_counts_the_others() {
        let list = |count: usize| listed((0..count).map(|number| number.to_string()), 2);
        assert_eq!([1, 2, 3, 9].map(list), ["0", "0, 1", "0, 1 and 1 more", "0, 1 and 7 more"]);
    }

    #[test]
    fn one_is_singular_and_all_else_plural() {
        let words = [0_u128, 1, 2, 11].map(|count| counted(count, "node is", "nodes are"));
        assert_eq!(words, ["0 nodes are", "1 node is", "2 nodes are", "11 nodes are"]);
    }
}
