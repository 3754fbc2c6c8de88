//! Numbers in sentences.

use std::fmt::Display;

/// The number and what is counted: `one` of 1, else `many`. So that no message speaks of "1 nodes".
pub fn counted(count: impl Display, one: &str, many: &str) -> String {
    let number = count.to_string();
    let noun = if number == "1" { one } else { many };
    format!("{number} {noun}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular_and_all_else_plural() {
        let words = [0_u128, 1, 2, 11].map(|count| counted(count, "node is", "nodes are"));
        assert_eq!(words, ["0 nodes are", "1 node is", "2 nodes are", "11 nodes are"]);
    }
}
