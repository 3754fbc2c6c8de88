//! What a YAML scalar without quotes means to kubectl, Argo CD and Flux: they all read YAML by `sigs.k8s.io/yaml`, which
//! knows the booleans and octal numbers of YAML 1.1. A manifest must mean here what it will mean there.

use super::tree::Value;

/// The value of a plain scalar without a tag.
pub(super) fn resolve(text: &str) -> Value {
    if let Some(value) = word(text) {
        return value;
    }
    let starts_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    starts_number.then(|| number(text)).flatten().unwrap_or_else(|| Value::Text(text.into()))
}

fn word(text: &str) -> Option<Value> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true, text.into())
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false, text.into())
        }
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN, text.into()),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY, text.into()),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY, text.into()),
        _ => return None,
    })
}

fn number(text: &str) -> Option<Value> {
    if text.starts_with('.') {
        return float(text, text);
    }
    let plain = text.replace('_', "");
    integer(&plain).map(Value::Int).or_else(|| float(&plain, text))
}

/// Parses an integer with Go's prefixes: 0x, 0o and 0b, and a leading 0 for octal.
fn integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("-", rest) => (-1, rest),
        ("+", rest) => (1, rest),
        _ => (1, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.split_at_checked(2) {
        Some(("0x", rest)) => (16, rest),
        Some(("0o", rest)) => (8, rest),
        Some(("0b", rest)) => (2, rest),
        Some(_) if lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let number = sign * i128::from(u64::from_str_radix(digits, radix).ok()?);
    (number >= i128::from(i64::MIN)).then_some(number)
}

fn float(digits: &str, text: &str) -> Option<Value> {
    // Rust also parses words such as "infinity", which are strings here.
    let is_number = digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    let value: f64 = digits.parse().ok().filter(|_| is_number)?;
    value.is_finite().then(|| Value::Float(value, text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(text: &str) -> i128 {
        match resolve(text) {
            Value::Int(number) => number,
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn booleans_are_those_of_yaml_1_1() {
        for (text, expected) in [("y", true), ("on", true), ("True", true), ("n", false), ("OFF", false)] {
            assert!(matches!(resolve(text), Value::Bool(value, _) if value == expected), "{text}");
        }
        for text in ["yEs", "oN", "tRUE", "t", "o"] {
            assert!(matches!(resolve(text), Value::Text(_)), "{text}");
        }
    }

    #[test]
    fn numbers_are_those_of_go() {
        assert_eq!([int("42"), int("-7"), int("+7"), int("0"), int("-0"), int("1_000")], [42, -7, 7, 0, 0, 1000]);
        assert_eq!([int("0x1F"), int("0o17"), int("017"), int("0b101"), int("-0b1")], [31, 15, 15, 5, -1]);
        assert_eq!([int("18446744073709551615"), int("-9223372036854775808")], [u64::MAX.into(), i64::MIN.into()]);
        for text in ["1.5", "1e2", ".5", "-1.", "18446744073709551616", "08"] {
            assert!(matches!(resolve(text), Value::Float(..)), "{text} is {:?}", resolve(text));
        }
    }

    #[test]
    fn addresses_dates_and_times_are_texts() {
        for text in
            ["192.168.0.0/16", "192.168.0.1", "fd00::1", "::1", "2001-12-14", "1:30", "-", ".", "+", "0x", "1e999"]
        {
            assert!(matches!(resolve(text), Value::Text(_)), "{text} is {:?}", resolve(text));
        }
    }

    #[test]
    fn nothing_is_null_and_so_are_its_names() {
        for text in ["", "~", "null", "NULL"] {
            assert_eq!(resolve(text), Value::Null);
        }
    }
}
