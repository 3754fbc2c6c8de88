//! Seeded mutations: the same seed gives the same inputs on every machine, so that a failure can be had again.

/// Pieces of the formats that are read, put in whole: byte by byte they would hardly come about.
const TOKENS: [&str; 52] = [
    "\n---\n",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "&a ",
    "*a",
    "<<: ",
    "!!str ",
    "|\n",
    ">-\n",
    "#",
    "\t",
    "\r\n",
    "\u{feff}",
    "null",
    "true",
    "on",
    "0",
    "-1",
    "1e9",
    "4294967296",
    "9223372036854775808",
    "0.0.0.0/0",
    "::/0",
    "10.0.0.0/8",
    "10.0.0.1",
    "fd00::/64",
    "fd00::1",
    "255.255.255.255",
    "/32",
    "/128",
    "kind: IPPool\n",
    "\"spec\":",
    "\"status\":",
    "\"pools\":[",
    "\"Releasing\"",
    "\"Active\"",
    "\"CIDRPool\"",
    "\"used\":1,",
    "\"held\":[],",
    "\"generation\":1,",
    "\"epoch\":",
    "\"endIP\":\"10.0.0.9\"",
    "\"allocations\":",
    "\"leaseDurationSeconds\":",
    "-----BEGIN CERTIFICATE-----\n",
    "-----END PRIVATE KEY-----\n",
];

/// Makes inputs from others.
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// A mutator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed | 1 }
    }

    /// The next number (xorshift64*).
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `count`, or 0.
    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or_default().checked_rem(count).unwrap_or_default()
    }

    /// One of `corpus`, changed in one to eight places; at most `longest` bytes.
    pub fn input(&mut self, corpus: &[Vec<u8>], longest: usize) -> Vec<u8> {
        let mut data = corpus.get(self.below(corpus.len())).cloned().unwrap_or_default();
        for _ in 0..=self.below(8) {
            self.change(&mut data, corpus);
        }
        data.truncate(longest);
        data
    }

    fn change(&mut self, data: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(data.len() + 1);
        let end = (at + self.below(16)).min(data.len());
        match self.below(7) {
            0 => data.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << (at % 8)),
            1 => drop(data.splice(at..end, [])),
            2 => drop(data.splice(at..at, [u8::try_from(self.next() >> 56).unwrap_or_default()])),
            3 => drop(data.splice(at..end, TOKENS[self.below(TOKENS.len())].bytes())),
            4 => drop(data.splice(at..at, data[at..end].repeat(1 + self.below(20)))),
            5 => {
                let other = corpus.get(self.below(corpus.len())).map_or(&[][..], Vec::as_slice);
                let from = self.below(other.len() + 1);
                let to = (from + self.below(200)).min(other.len());
                drop(data.splice(at..end, other[from..to].iter().copied()));
            }
            _ => data.truncate(at.max(data.len() / 2)),
        }
    }
}
