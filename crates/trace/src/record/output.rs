//! Writing the trace on a thread of its own, so that compression does not keep programs waiting.

use crate::event::Event;
use crate::format::{TraceError, TraceHeader, TraceWriter, Trailer};
use crate::record::sys::time::thread_cpu;
use std::fs::File;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Batches that may wait for the writer; then the recorder waits too, rather than use ever more memory.
const QUEUE: usize = 64;
/// What was recorded reaches the file at least this often.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

enum Message {
    Events(Vec<Event>),
    End { wall_ns: u64, stopped_ns: u64 },
}

/// What the writer did.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) totals: Trailer,
    pub(crate) bytes: u64,
    pub(crate) cpu_ns: u64,
}

/// The writer's thread.
#[derive(Debug)]
pub(crate) struct Output {
    queue: SyncSender<Message>,
    thread: JoinHandle<Result<Option<Written>, TraceError>>,
}

impl Output {
    /// Starts the thread.
    pub(crate) fn start(file: File, header: TraceHeader, level: i32) -> std::io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE);
        let thread = Builder::new()
            .name("quire-writer".into())
            .spawn(move || write(file, &header, level, &messages))?;
        Ok(Self { queue, thread })
    }

    /// Hands events over. If the writer failed they are dropped: the program is not to suffer for it, and
    /// [`Output::finish`] tells why.
    pub(crate) fn push(&self, events: Vec<Event>) {
        if !events.is_empty() {
            drop(self.queue.send(Message::Events(events)));
        }
    }

    /// Ends the trace and waits until it is written; `None` if the writer's thread died.
    pub(crate) fn finish(self, wall_ns: u64, stopped_ns: u64) -> Result<Option<Written>, TraceError> {
        drop(self.queue.send(Message::End { wall_ns, stopped_ns }));
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
    // Until the program has begun, a file that was there before is left alone.
    let Ok(mut message) = messages.recv() else { return Ok(None) };
    drop(file.set_len(0));
    let mut writer = TraceWriter::new(file, header, level)?;
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
            Message::End { wall_ns, stopped_ns } => {
                writer.flush()?;
                let (file, totals) = writer.finish(wall_ns, stopped_ns)?;
                let bytes = file.metadata().map_or(0, |facts| facts.len());
                return Ok(Some(Written { totals, bytes, cpu_ns: thread_cpu() }));
            }
        }
        match messages.recv() {
            Ok(next) => message = next,
            Err(_) => return Ok(None),
        }
    }
}
