//! The syntax of names that Kubernetes and CNI define. Each function only checks a name; the caller explains the error.

/// A CNI network name (CNI spec: "must start with an alphanumeric character, optionally followed by any combination of
/// one or more alphanumeric characters, underscore, dot (.) or hyphen (-)").
pub fn is_cni_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_name_char)
}

/// A label key, a "qualified name": an optional DNS subdomain and `/`, then a name as [`is_name`] takes it.
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name(name),
        None => is_name(text),
    }
}

/// A label value: empty, or a name as [`is_name`] takes it.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

/// A DNS-1123 subdomain, as node names are: up to 253 lower case letters, digits, `-` and `.`; each part between dots
/// starts and ends with a letter or digit.
pub fn is_dns_subdomain(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.split('.').all(|part| {
            part.starts_with(is_alphanumeric)
                && part.ends_with(is_alphanumeric)
                && part.chars().all(|c| is_alphanumeric(c) || c == '-')
        })
}

/// Up to 63 letters, digits, `-`, `_` and `.`, a letter or digit first and last.
fn is_name(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}
