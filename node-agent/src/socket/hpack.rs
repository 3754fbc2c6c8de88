//! As much of HPACK (RFC 7541) as is needed to find a header and to replace its value.

use std::sync::LazyLock;

/// The length in bits of the Huffman code of each byte, RFC 7541 appendix B. The codes of one length are consecutive numbers in the
/// order of the bytes, and those of the next length follow.
#[rustfmt::skip]
const CODE_LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
/// The longest code.
const LONGEST: u8 = 30;

/// Index of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY: &[u8] = b":authority";

/// The header block with another value of `:authority`, if `replacement` has one for the present value. `None` if it stays as it is, also
/// if it cannot be read.
///
/// The new value must be as long as the present one. The peer's table of headers then has the same size on both sides.
pub(super) fn with_authority(block: &[u8], replacement: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut reader = Reader { block, at: 0 };
    while reader.at < block.len() {
        let field = reader.field()?;
        let Some(value) = field.authority.and_then(|value| replacement(&value)) else { continue };
        let mut changed = block.get(..field.value_from)?.to_vec();
        push_string(&mut changed, &value);
        changed.extend_from_slice(block.get(reader.at..)?);
        return Some(changed);
    }
    None
}

/// A header of a block.
struct Field {
    /// Where its value begins.
    value_from: usize,
    /// The value, if this is `:authority` in full.
    authority: Option<Vec<u8>>,
}

struct Reader<'a> {
    block: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The next header. `None` if the block cannot be read.
    fn field(&mut self) -> Option<Field> {
        let first = *self.block.get(self.at)?;
        let without_value = |reader: &Self| Some(Field { value_from: reader.at, authority: None });
        // Indexed, or another size of the table: there is no value.
        if first & 0x80 != 0 {
            self.integer(7)?;
            return without_value(self);
        }
        if first & 0xe0 == 0x20 {
            self.integer(5)?;
            return without_value(self);
        }
        let name = self.integer(if first & 0x40 != 0 { 6 } else { 4 })?;
        let is_authority = match name {
            0 => self.string()?.decoded()? == AUTHORITY,
            index => index == AUTHORITY_INDEX,
        };
        let value_from = self.at;
        let value = self.string()?;
        let authority = if is_authority { Some(value.decoded()?) } else { None };
        Some(Field { value_from, authority })
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.block.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// An integer with a prefix of so many bits, RFC 7541 section 5.1. `None` for one that no header needs.
    fn integer(&mut self, prefix: u8) -> Option<usize> {
        let most = (1_usize << prefix) - 1;
        let mut value = usize::from(self.byte()?) & most;
        if value < most {
            return Some(value);
        }
        for shift in [0, 7, 14] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A string literal, RFC 7541 section 5.2.
    fn string(&mut self) -> Option<Literal<'_>> {
        let is_huffman = self.block.get(self.at)? & 0x80 != 0;
        let length = self.integer(7)?;
        let bytes = self.block.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(Literal { is_huffman, bytes })
    }
}

/// A string literal as it came.
struct Literal<'a> {
    is_huffman: bool,
    bytes: &'a [u8],
}

impl Literal<'_> {
    fn decoded(&self) -> Option<Vec<u8>> {
        if self.is_huffman { huffman(self.bytes) } else { Some(self.bytes.to_vec()) }
    }
}

/// A string literal without Huffman coding.
fn push_string(block: &mut Vec<u8>, text: &[u8]) {
    let most = 0x7f;
    block.extend(u8::try_from(text.len().min(most)).ok());
    let mut rest = text.len().checked_sub(most);
    while let Some(number) = rest {
        rest = Some(number >> 7).filter(|higher| *higher > 0);
        let more = if rest.is_some() { 0x80 } else { 0 };
        block.extend(u8::try_from(number & 0x7f | more).ok());
    }
    block.extend_from_slice(text);
}

/// All bytes in the order of their codes, each with the length of its code.
static BYTES: LazyLock<Vec<(u8, u8)>> = LazyLock::new(|| {
    let mut bytes: Vec<(u8, u8)> = CODE_LENGTHS.into_iter().zip(0..=u8::MAX).collect();
    bytes.sort_unstable();
    bytes
});

/// Decodes a Huffman-coded string; `None` if it is none.
fn huffman(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut symbol = Symbol::default();
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |place| byte >> place & 1)) {
        if let Some(byte) = symbol.add(bit) {
            text.push(byte);
            symbol = Symbol::default();
        }
        if symbol.length > LONGEST {
            return None;
        }
    }
    // The padding is less than a byte of ones.
    (symbol.length < 8 && symbol.code == (1 << symbol.length) - 1).then_some(text)
}

/// A code that has come in part.
#[derive(Default)]
struct Symbol {
    code: usize,
    length: u8,
    /// The first code of this length, and its place among [`BYTES`].
    first: usize,
    place: usize,
}

impl Symbol {
    /// Adds a bit; returns the byte if the code is complete.
    fn add(&mut self, bit: u8) -> Option<u8> {
        self.length += 1;
        (self.code, self.first) = (self.code << 1 | usize::from(bit), self.first << 1);
        let end = BYTES.partition_point(|(length, _)| *length <= self.length);
        let place = self.place + self.code.checked_sub(self.first)?;
        if place < end {
            return BYTES.get(place).map(|(_, byte)| *byte);
        }
        self.first += end - self.place;
        self.place = end;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appendix C.4.1 of RFC 7541, with the authority `www.example.com`.
    const EXAMPLE: [u8; 17] =
        [0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];

    fn authority(block: &[u8]) -> Option<Vec<u8>> {
        let seen = std::cell::RefCell::new(None);
        let changed = with_authority(block, |value| {
            seen.replace(Some(value.to_vec()));
            None
        });
        assert_eq!(changed, None);
        seen.into_inner()
    }

    #[test]
    fn the_authority_is_read_in_each_representation() {
        assert_eq!(authority(&EXAMPLE).as_deref(), Some(&b"www.example.com"[..]));
        for first in [0x41, 0x01, 0x11] {
            let block = [&[0x83, first, 3][..], b"a/b", &[0x88]].concat();
            assert_eq!(authority(&block).as_deref(), Some(&b"a/b"[..]), "{first:#x}");
        }
        let by_name = [&[0x3f, 0xe1, 0x1f, 0x40, 10][..], b":authority", &[1, b'x']].concat();
        assert_eq!(authority(&by_name).as_deref(), Some(&b"x"[..]));
        assert_eq!(authority(&[0x82, 0x40, 1, b'n', 1, b'v']), None, "another header");
    }

    #[test]
    fn only_the_value_is_replaced() {
        for length in [1, 126, 127, 128, 254, 255, 300, 20_000] {
            let mut block = vec![0x83, 0x41];
            push_string(&mut block, &vec![b'/'; length]);
            block.extend([0x86, 0x84]);
            let changed = with_authority(&block, |value| Some(vec![b'-'; value.len()])).unwrap();
            assert_eq!(authority(&changed), Some(vec![b'-'; length]), "{length}");
            assert_eq!((&changed[..2], &changed[changed.len() - 2..]), (&block[..2], &block[block.len() - 2..]));
        }
    }

    #[test]
    fn a_block_that_cannot_be_read_stays() {
        for end in 0..EXAMPLE.len() {
            // Huffman codes that are cut can be valid.
            let changed = with_authority(&EXAMPLE[..end], |value| Some(vec![b'-'; value.len()]));
            assert!(end == 3 || changed.is_none(), "{end}");
        }
        for block in
            [&[0x41, 0x81, 0xff][..], &[0x41, 0xff, 0xff, 0xff, 0xff, 0xff], &[0x41, 0x84, 0xff, 0xff, 0xff, 0xff]]
        {
            assert_eq!(with_authority(block, |_| Some(Vec::new())), None, "{block:?}");
        }
    }

    /// The code of each byte.
    fn codes() -> Vec<(u32, u8)> {
        let mut bytes: Vec<u8> = (0..=u8::MAX).collect();
        let length = |byte: u8| CODE_LENGTHS[usize::from(byte)];
        bytes.sort_by_key(|byte| (length(*byte), *byte));
        let mut codes = vec![(0, 0); 256];
        let mut next = (0_u32, 5);
        for byte in bytes {
            let code = next.0 << (length(byte) - next.1);
            codes[usize::from(byte)] = (code, length(byte));
            next = (code + 1, length(byte));
        }
        codes
    }

    #[test]
    fn each_byte_is_decoded_from_its_code() {
        let codes = codes();
        assert_eq!((codes[usize::from(b'/')], codes[0], codes[22]), ((0x18, 6), (0x1ff8, 13), (0x3fff_fffe, 30)));
        let text: Vec<u8> = (0..=u8::MAX).collect();
        let mut bits: Vec<u8> = Vec::new();
        for (code, length) in codes {
            bits.extend((0..length).rev().map(|place| u8::from(code >> place & 1 == 1)));
        }
        bits.resize(bits.len().next_multiple_of(8), 1);
        let byte = |bits: &[u8]| bits.iter().fold(0, |byte, bit| byte << 1 | bit);
        let bytes: Vec<u8> = bits.chunks(8).map(byte).collect();
        assert_eq!(huffman(&bytes), Some(text));
    }
}
