//! The spellings that Go's flag packages accept for durations, booleans and quantities.
//!
//! Decides only whether a text is a value. Messages complete the sentence "--flag \"VALUE\" …".

use std::time::Duration;

const NANOS: [(&str, f64); 8] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Reads a duration as Go's `time.ParseDuration` does ("5s", "1m30s", "1.5h", "0"); negative ones are rejected.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "is no duration; write for example \"5s\", \"1m30s\" or \"500ms\"".to_owned();
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.starts_with('-') {
        return Err("is negative; write a duration of \"0s\" or more".to_owned());
    }
    if digits == "0" {
        return Ok(Duration::ZERO);
    }
    if digits.is_empty() {
        return Err(wrong());
    }
    let mut rest = digits;
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let number_len = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, tail) = rest.split_at(number_len);
        let unit_len =
            tail.char_indices().find(|(_, c)| c.is_ascii_digit() || *c == '.').map_or(tail.len(), |(i, _)| i);
        let (unit, tail) = tail.split_at(unit_len);
        let factor = NANOS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(wrong)?;
        nanos += number.parse::<f64>().map_err(|_| wrong())? * factor;
        rest = tail;
    }
    Duration::try_from_secs_f64(nanos / 1e9).map_err(|_| "is too long a duration".to_owned())
}

/// Reads a boolean as Go's `strconv.ParseBool` does.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("is no boolean; write \"true\" or \"false\"".to_owned()),
    }
}

/// Reads a number of bytes as a Kubernetes quantity without fractions: "512", "1K", "2Ki", "3M", "4Gi".
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor: Option<u64> = match unit {
        "" => Some(1),
        "k" | "K" => Some(1_000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        "Ki" => Some(1 << 10),
        "Mi" => Some(1 << 20),
        "Gi" => Some(1 << 30),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor)).ok_or_else(|| {
        "is no size; write a number of bytes (\"512\"), multiples of 1000 (\"1K\") or of 1024 (\"2Ki\")".to_owned()
    })
}

/// Reads a whole number of `min..=max`.
pub fn integer(text: &str, min: i64, max: i64) -> Result<i64, String> {
    let value = text.parse::<i64>().ok().filter(|value| (min..=max).contains(value));
    value.ok_or_else(|| {
        if max == i64::MAX {
            format!("is no whole number of {min} or more")
        } else {
            format!("is no whole number from {min} to {max}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, millis) in
            [("0", 0), ("5s", 5_000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("250ms", 250), ("+2s", 2_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "5 s", "5x", "1..2s", "-5s", "1e3s", "99999999999999999999h", "5sm"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn booleans_are_read_as_go_reads_them() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Ok(true));
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Ok(false));
        }
        for text in ["", "yes", "tRUE", "2"] {
            assert!(boolean(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_take_decimal_and_binary_multiples_and_do_not_overflow() {
        for (text, size) in [("0", 0), ("512", 512), ("1K", 1_000), ("2Ki", 2_048), ("3M", 3_000_000), ("1Gi", 1 << 30)]
        {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "K", "1.5K", "-1", "1KB", "99999999999999999999", "18446744073709551615Ki"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn integers_keep_their_bounds() {
        assert_eq!(integer("3", 1, 5), Ok(3));
        for text in ["0", "6", "x", "", "3.0"] {
            assert!(integer(text, 1, 5).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in ".*") {
            let _ = (duration(&text), boolean(&text), bytes(&text), integer(&text, 0, 9));
        }
    }
}
