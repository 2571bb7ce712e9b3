//! Writing the trace on a thread of its own, so that compression does not keep programs waiting.

use crate::sys::time::thread_cpu;
use crate::sys::{priority, signals};
use quire_trace::event::Event;
use quire_trace::format::{TraceError, TraceHeader, TraceWriter, Trailer};
use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Batches that may wait for the writer; then the recorder waits too, to bound its memory.
const QUEUE: usize = 64;
/// What was recorded reaches the file at least this often.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

enum Message {
    Events(Vec<Event>),
    End { wall_ns: u64, stopped_ns: u64, early: bool },
}

/// What the writer did.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) totals: Trailer,
    pub(crate) bytes: u64,
    pub(crate) cpu_ns: u64,
}

/// A file, which may be a pipe, and how much was written to it.
#[derive(Debug)]
struct Sink {
    file: File,
    bytes: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The writer's thread.
#[derive(Debug)]
pub(crate) struct Output {
    queue: SyncSender<Message>,
    thread: JoinHandle<Result<Option<Written>, TraceError>>,
}

impl Output {
    /// Starts the thread.
    pub(crate) fn start(file: File, header: TraceHeader, level: i32) -> io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE);
        // The writer's thread inherits the mask.
        let blocked = signals::Blocked::new();
        let writer = Builder::new().name("quire-writer".into());
        let thread = writer.spawn(move || write(file, &header, level, &messages))?;
        drop(blocked);
        Ok(Self { queue, thread })
    }

    /// Hands events over. If the writer failed they are dropped: the program must not fail for it, and
    /// [`Output::finish`] returns the reason.
    pub(crate) fn push(&self, events: Vec<Event>) {
        if !events.is_empty() {
            drop(self.queue.send(Message::Events(events)));
        }
    }

    /// Ends the trace and waits until it is written; `None` if the writer's thread died.
    pub(crate) fn finish(
        self,
        wall_ns: u64,
        stopped_ns: u64,
        early: bool,
    ) -> Result<Option<Written>, TraceError> {
        drop(self.queue.send(Message::End { wall_ns, stopped_ns, early }));
        drop(self.queue);
        self.thread.join().unwrap_or(Ok(None))
    }
}

fn write(
    file: File,
    header: &TraceHeader,
    level: i32,
    messages: &Receiver<Message>,
) -> Result<Option<Written>, TraceError> {
    // The tracer waits for it if it is too slow.
    priority::run_first();
    // Nothing is written before the program has begun: it may turn out not to exist.
    let Ok(mut message) = messages.recv() else { return Ok(None) };
    let mut writer = TraceWriter::new(Sink { file, bytes: 0 }, header, level)?;
    let mut flushed = Instant::now();
    loop {
        match message {
            Message::Events(events) => {
                for event in &events {
                    writer.push(event)?;
                }
                if flushed.elapsed() >= FLUSH_EVERY {
                    writer.flush()?;
                    flushed = Instant::now();
                }
            }
            Message::End { wall_ns, stopped_ns, early } => {
                writer.flush()?;
                if early {
                    writer.end_early();
                }
                let (sink, totals) = writer.finish(wall_ns, stopped_ns)?;
                return Ok(Some(Written { totals, bytes: sink.bytes, cpu_ns: thread_cpu() }));
            }
        }
        match messages.recv() {
            Ok(next) => message = next,
            Err(_) => return Ok(None),
        }
    }
}
