//! One record of the journal: a header, a payload, zeros up to the next multiple of eight.
//!
//! The header is length (`u32`), CRC32 (`u32`), epoch (`u64`), sequence (`u64`), little endian; the CRC covers length,
//! epoch, sequence and payload. A record is believed only where its epoch and sequence are the ones expected there, so
//! that bytes of an older file, or of elsewhere in this one, are never taken for it.

/// Bytes of the header.
pub(super) const HEADER: usize = 24;
/// Records start at multiples of this.
pub(super) const ALIGNMENT: usize = 8;

/// Bytes that a record with this payload takes.
pub(super) const fn size(payload: usize) -> usize {
    (HEADER + payload).next_multiple_of(ALIGNMENT)
}

/// A record as bytes. A payload beyond 4 GiB cannot be asked for: the journal bounds it.
pub(super) fn encode(epoch: u64, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(size(payload.len()));
    out.extend(len.to_le_bytes());
    out.extend(checksum(len, epoch, sequence, payload).to_le_bytes());
    out.extend(epoch.to_le_bytes());
    out.extend(sequence.to_le_bytes());
    out.extend(payload);
    out.resize(size(payload.len()), 0);
    out
}

/// A record found in a file.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Record<'a> {
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    pub(super) payload: &'a [u8],
}

impl Record<'_> {
    /// Bytes that it takes.
    pub(super) const fn size(&self) -> usize {
        size(self.payload.len())
    }
}

/// The record that starts at `offset`, if there is an intact one, whatever its epoch and sequence.
#[cfg(test)]
pub(super) fn at(file: &[u8], offset: usize) -> Option<Record<'_>> {
    at_if(file, offset, |_, _| true)
}

/// The record that starts at `offset`, if there is an intact one whose epoch and sequence are `wanted`; these are checked
/// before the payload is, which is what costs.
pub(super) fn at_if(file: &[u8], offset: usize, wanted: impl Fn(u64, u64) -> bool) -> Option<Record<'_>> {
    let header = file.get(offset..offset.checked_add(HEADER)?)?;
    let word = |from: usize| header.get(from..from + 4)?.try_into().ok().map(u32::from_le_bytes);
    let long = |from: usize| header.get(from..from + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (len, crc, epoch, sequence) = (word(0)?, word(4)?, long(8)?, long(16)?);
    if len == 0 || !wanted(epoch, sequence) {
        return None;
    }
    let start = offset + HEADER;
    let payload = file.get(start..start.checked_add(usize::try_from(len).ok()?)?)?;
    (checksum(len, epoch, sequence, payload) == crc).then_some(Record { epoch, sequence, payload })
}

fn checksum(len: u32, epoch: u64, sequence: u64, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&len.to_le_bytes());
    crc.update(&epoch.to_le_bytes());
    crc.update(&sequence.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_again_and_no_flipped_bit_of_it_is_missed() {
        let mut file = vec![0; ALIGNMENT];
        file.extend(encode(3, 7, b"payload"));
        let found = at(&file, ALIGNMENT).unwrap();
        assert_eq!(found, Record { epoch: 3, sequence: 7, payload: b"payload" });
        let payload_end = ALIGNMENT + HEADER + b"payload".len();
        for bit in ALIGNMENT * 8..payload_end * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(at(&flipped, ALIGNMENT), None, "bit {bit}");
        }
    }

    #[test]
    fn zeros_and_offsets_outside_are_no_record() {
        let zeros = [0; 64];
        for offset in [0, 8, 40, 63, 64, usize::MAX] {
            assert_eq!(at(&zeros, offset), None);
        }
    }
}
