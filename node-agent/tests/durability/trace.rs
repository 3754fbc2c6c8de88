//! The system calls of a traced agent, in the order in which they began.
//!
//! Reads what `strace -f -y -xx -o FILE` writes. A call that another thread interrupts stands on two lines there, and is one
//! call here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One system call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) thread: u32,
    pub(crate) name: String,
    /// The file, directory or socket of its first descriptor.
    pub(crate) descriptor: PathBuf,
    /// Its strings: paths, or the bytes that were read or written.
    pub(crate) strings: Vec<Vec<u8>>,
    /// Its last argument.
    pub(crate) last: String,
    pub(crate) result: i64,
    /// The lines on which it begins and ends.
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

impl Call {
    /// All bytes that were read or written.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.strings.concat()
    }

    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.bytes().windows(text.len()).any(|found| found == text.as_bytes())
    }

    /// A path among its strings.
    pub(crate) fn path(&self, index: usize) -> PathBuf {
        PathBuf::from(String::from_utf8(self.strings[index].clone()).unwrap())
    }

    pub(crate) fn is_sync(&self) -> bool {
        matches!(self.name.as_str(), "fsync" | "fdatasync")
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.name.as_str(), "write" | "pwrite64" | "writev" | "pwritev")
    }

    pub(crate) fn is_rename(&self) -> bool {
        self.name.starts_with("rename")
    }

    /// Whether it has made, renamed or removed an entry of a directory.
    pub(crate) fn changes_a_directory(&self) -> bool {
        let is_change = self.is_rename() || self.name.starts_with("unlink") || self.name.starts_with("mkdir");
        is_change && self.result == 0
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.name.as_str(), "read" | "recvfrom" | "recvmsg")
    }

    /// Whether it sends an HTTP/2 HEADERS frame: the first or the last part of an answer.
    pub(crate) fn answers(&self) -> bool {
        const FRAME: usize = 9;
        const HEADERS: u8 = 1;
        let sends = matches!(self.name.as_str(), "write" | "writev" | "sendto" | "sendmsg");
        let bytes = self.bytes();
        let mut rest = bytes.as_slice();
        while sends && rest.len() >= FRAME {
            if rest[3] == HEADERS {
                return true;
            }
            let length = usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
            rest = rest.get(FRAME + length..).unwrap_or_default();
        }
        false
    }
}

/// The calls of a trace, those apart that had not returned when the agent ended.
pub(crate) fn read(file: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut pending: BTreeMap<u32, (usize, String)> = BTreeMap::new();
    let mut calls = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let (thread, what) = line.split_once(' ').unwrap();
        let (thread, what) = (thread.parse().unwrap(), what.trim_start());
        if what.starts_with("+++") || what.starts_with("---") {
            continue;
        }
        if let Some(head) = what.strip_suffix("<unfinished ...>") {
            pending.insert(thread, (number, head.to_owned()));
            continue;
        }
        let (begin, whole) = match what.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>")) {
            Some((_, tail)) => {
                let (begin, head) = pending.remove(&thread).unwrap();
                (begin, head + tail)
            }
            None => (number, what.to_owned()),
        };
        calls.extend(call(thread, &whole, begin, number));
    }
    calls.sort_by_key(|call| call.begin);
    calls
}

/// `None` for a call that never returned.
fn call(thread: u32, text: &str, begin: usize, end: usize) -> Option<Call> {
    let (name, rest) = text.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    let descriptor = arguments.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(path, _)| path);
    let strings = arguments.split('"').skip(1).step_by(2).map(bytes_of).collect();
    Some(Call {
        thread,
        name: name.to_owned(),
        descriptor: PathBuf::from(String::from_utf8(bytes_of(descriptor.unwrap_or_default())).unwrap()),
        strings,
        last: arguments.rsplit(", ").next().unwrap_or_default().trim_end().to_owned(),
        result: result.split(' ').next()?.parse().ok()?,
        begin,
        end,
    })
}

/// The bytes of a text in which some or all are written `\xHH`.
fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let escaped = rest.strip_prefix("\\x").and_then(|rest| rest.get(..2));
        if let Some(byte) = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = &rest[4..];
        } else {
            bytes.extend(first.to_string().bytes());
            rest = &rest[first.len_utf8()..];
        }
    }
    bytes
}

#[test]
fn interrupted_calls_are_read_as_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "7 pwrite64(9<\\x2f\\x61>, \"\\x68\\x69\", 2, 40 <unfinished ...>\n8 fsync(3<\\x2f>) = -1 EIO (Input/output error) \
        (INJECTED)\n7 <... pwrite64 resumed>) = 2\n8 read(4<socket:[5]>,  <unfinished ...>\n8 +++ exited with 1 +++\n";
    std::fs::write(file.path(), text).unwrap();
    let [write, sync] = &read(file.path())[..] else { panic!("two calls have returned") };
    assert_eq!((write.thread, write.name.as_str(), write.result, write.last.as_str()), (7, "pwrite64", 2, "40"));
    assert_eq!((write.descriptor.as_path(), write.bytes()), (Path::new("/a"), b"hi".to_vec()));
    assert_eq!((write.begin, write.end), (0, 2));
    assert_eq!((sync.thread, sync.result, sync.descriptor.as_path()), (8, -1, Path::new("/")));
}
