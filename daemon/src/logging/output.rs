//! Where log lines end up: stderr, stdout, or a buffer before stdout.

use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::{Format, LogConfig};

/// The two streams. Cheap to clone; clones share the streams.
#[derive(Clone)]
pub(super) struct Output {
    info: Stream,
    errors: Stream,
}

type Stream = Arc<Mutex<Sink>>;

enum Sink {
    Stderr,
    Stdout(BufWriter<io::Stdout>),
    #[cfg(test)]
    Memory {
        written: Vec<u8>,
        buffer: BufWriter<Vec<u8>>,
        size: usize,
    },
}

impl Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().lock().write_all(line),
            Self::Stdout(buffer) => {
                buffer.write_all(line)?;
                if buffer.capacity() == 0 { buffer.flush() } else { Ok(()) }
            }
            #[cfg(test)]
            Self::Memory { written, buffer, size } if *size == 0 => {
                assert!(buffer.buffer().is_empty());
                written.write_all(line)
            }
            #[cfg(test)]
            Self::Memory { buffer, .. } => buffer.write_all(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stderr => Ok(()),
            Self::Stdout(buffer) => buffer.flush(),
            #[cfg(test)]
            Self::Memory { written, buffer, .. } => {
                buffer.flush()?;
                written.append(buffer.get_mut());
                Ok(())
            }
        }
    }
}

/// A panic of another thread while it wrote leaves at worst half a line.
fn lock(stream: &Stream) -> MutexGuard<'_, Sink> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Output {
    pub(super) fn new(config: &LogConfig) -> Self {
        let stdout = || {
            let size = usize::try_from(config.info_buffer).unwrap_or(usize::MAX).min(1 << 30);
            Arc::new(Mutex::new(Sink::Stdout(BufWriter::with_capacity(size, io::stdout()))))
        };
        let stderr = || Arc::new(Mutex::new(Sink::Stderr));
        match (config.format, config.split_stream) {
            (Format::Text, false) => Self::both(stderr()),
            (Format::Json, false) => Self::both(stdout()),
            (_, true) => Self { info: stdout(), errors: stderr() },
        }
    }

    fn both(stream: Stream) -> Self {
        Self { info: Arc::clone(&stream), errors: stream }
    }

    /// Writes one whole line. A line that cannot be written is lost, because there is nowhere to report it.
    pub(super) fn write(&self, is_error: bool, line: &[u8]) {
        let stream = if is_error { &self.errors } else { &self.info };
        drop(lock(stream).write(line));
    }

    pub(super) fn flush(&mut self) {
        drop(lock(&self.info).flush());
    }
}

/// Empties the buffer every `--log-flush-frequency`, and when dropped.
pub struct Flusher {
    output: Output,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    pub(super) fn start(output: Output, config: &LogConfig) -> Self {
        if (config.format == Format::Text && !config.split_stream) || config.info_buffer == 0 {
            return Self { output, stop: None, thread: None };
        }
        let (stop, stopped) = channel();
        let (mut flushed, every) = (output.clone(), config.flush_every);
        let work = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                flushed.flush();
            }
        };
        // Without the thread, lines wait until the buffer is full: late, but not lost.
        let thread = thread::Builder::new().name("log-flush".to_owned()).spawn(work).ok();
        Self { output, stop: Some(stop), thread }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        self.output.flush();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    impl Output {
        pub(crate) fn written_to_stdout(&self) -> String {
            text(&self.info)
        }
    }

    fn memory(size: u64) -> Stream {
        let size = usize::try_from(size).unwrap();
        let buffer = BufWriter::with_capacity(size, Vec::new());
        Arc::new(Mutex::new(Sink::Memory { written: Vec::new(), buffer, size }))
    }

    fn text(stream: &Stream) -> String {
        match &*lock(stream) {
            Sink::Memory { written, .. } => String::from_utf8(written.clone()).unwrap(),
            _ => unreachable!("tests write to memory"),
        }
    }

    /// What `work` writes to stdout and stderr under `config`, the last flush included.
    pub(in crate::logging) fn captured(config: &LogConfig, work: impl FnOnce(Output)) -> (String, String) {
        let (stdout, stderr) = (memory(config.info_buffer), memory(0));
        let output = match Output::new(config) {
            Output { info, errors } if Arc::ptr_eq(&info, &errors) && matches!(*lock(&info), Sink::Stderr) => {
                Output::both(Arc::clone(&stderr))
            }
            Output { info, errors } if Arc::ptr_eq(&info, &errors) => Output::both(Arc::clone(&stdout)),
            Output { .. } => Output { info: Arc::clone(&stdout), errors: Arc::clone(&stderr) },
        };
        let flusher = Flusher::start(output.clone(), config);
        work(output);
        drop(flusher);
        (text(&stdout), text(&stderr))
    }
}
