//! Events as bytes.
//!
//! Numbers are stored as differences from the event before; all state is reset at each block, so that a
//! block can be decoded alone.

mod call;
mod codes;
mod figures;
mod file;
mod image;
mod reuse;

use super::Version;
use super::varint::{Cursor, Malformed, difference, put_u64};
use super::wire::{Wire, wire};
use crate::event::{
    Access, CloneFacts, Event, EventKind, ExitStatus, Fault, FileFacts, Lost, TaskId, Window,
};
use std::collections::HashMap;
use std::sync::Arc;

const SAME_TASK: u8 = 0x10;
const SAME_CPU: u8 = 0x20;
const KIND_MASK: u8 = 0x0f;
const RESERVED: u8 = 0xc0;

/// Threads share this many slots for their last address: bounded, no matter what a file claims.
const SLOTS: usize = 64;

/// The state that both sides keep from the events before, within a block.
#[derive(Debug)]
struct State {
    time: u64,
    task: u32,
    cpu: u32,
    last_addr: [u64; SLOTS],
    last_args: [u64; 6],
    last_result: u64,
}

impl State {
    fn new() -> Self {
        Self { time: 0, task: 0, cpu: 0, last_addr: [0; SLOTS], last_args: [0; 6], last_result: 0 }
    }

    fn last_addr(&mut self) -> &mut u64 {
        &mut self.last_addr[self.task as usize % SLOTS]
    }
}

/// Encodes the events of one block after another.
#[derive(Debug)]
pub(crate) struct BlockEncoder {
    out: Vec<u8>,
    state: State,
    files: HashMap<Arc<FileFacts>, u64>,
}

impl BlockEncoder {
    pub(crate) fn new() -> Self {
        Self { out: Vec::new(), state: State::new(), files: HashMap::new() }
    }

    /// The bytes so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// Begins a new block.
    pub(crate) fn reset(&mut self) {
        self.out.clear();
        self.state = State::new();
        self.files.clear();
    }

    /// Appends one event.
    pub(crate) fn event(&mut self, event: &Event) {
        let state = &mut self.state;
        let mut tag = event.kind.index() as u8;
        if event.task.0 == state.task {
            tag |= SAME_TASK;
        }
        if event.cpu == state.cpu {
            tag |= SAME_CPU;
        }
        self.out.push(tag);
        put_u64(&mut self.out, difference(event.time_ns, state.time));
        if event.task.0 != state.task {
            put_u64(&mut self.out, u64::from(event.task.0));
        }
        if event.cpu != state.cpu {
            put_u64(&mut self.out, u64::from(event.cpu));
        }
        (state.time, state.task, state.cpu) = (event.time_ns, event.task.0, event.cpu);
        match &event.kind {
            EventKind::Fault(fault) => self.fault(fault),
            EventKind::Call(call) => self.call(call),
            EventKind::Clone(facts) => facts.put(&mut self.out),
            EventKind::Exec(image) => image.put(&mut self.out),
            EventKind::Limit(limit) => limit.put(&mut self.out),
            EventKind::Figures(figures) => figures.put(&mut self.out),
            EventKind::Exit(status) => status.put(&mut self.out),
            EventKind::Lost(lost) => lost.put(&mut self.out),
            EventKind::Unsupported(what) => what.put(&mut self.out),
            EventKind::Reuse(reuse) => reuse.put(&mut self.out),
            EventKind::Compressibility(sample) => sample.put(&mut self.out),
            EventKind::Privileges(privileges) => privileges.put(&mut self.out),
            EventKind::Contents(sample) => sample.put(&mut self.out),
            EventKind::Window(window) => window.put(&mut self.out),
            EventKind::File(file) => file.put(&mut self.out),
        }
    }

    fn fault(&mut self, fault: &Fault) {
        self.out.push(codes::fault_byte(fault));
        let last = self.state.last_addr();
        let difference = difference(fault.addr, *last);
        *last = fault.addr;
        put_u64(&mut self.out, difference);
    }
}

/// Where a decoder stands in a block. The caller keeps the bytes and may refill them for the next.
#[derive(Debug)]
pub(crate) struct BlockDecoder {
    /// The version of the file.
    version: Version,
    at: usize,
    state: State,
    files: Vec<Arc<FileFacts>>,
}

impl BlockDecoder {
    pub(crate) fn new(version: Version) -> Self {
        Self { version, at: 0, state: State::new(), files: Vec::new() }
    }

    /// Begins a new block.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.version);
    }

    /// Whether the whole block was decoded.
    pub(crate) fn is_at_end(&self, bytes: &[u8]) -> bool {
        self.at >= bytes.len()
    }

    /// The next event.
    pub(crate) fn event(&mut self, bytes: &[u8]) -> Result<Event, Malformed> {
        let mut cursor = Cursor::new(bytes, self.at, self.version);
        let tag = cursor.u8()?;
        if tag & RESERVED != 0 {
            return Err(Malformed("an event uses reserved bits"));
        }
        let state = &mut self.state;
        state.time = cursor.restore(state.time)?;
        if tag & SAME_TASK == 0 {
            state.task = cursor.u32()?;
        }
        if tag & SAME_CPU == 0 {
            state.cpu = cursor.u32()?;
        }
        let (time_ns, task, cpu) = (state.time, TaskId(state.task), state.cpu);
        if usize::from(tag & KIND_MASK) >= self.version.kinds() {
            return Err(Malformed("unknown kind of event"));
        }
        let kind = match tag & KIND_MASK {
            0 => self.fault(&mut cursor)?,
            1 => self.call(&mut cursor)?,
            2 => EventKind::Clone(Wire::get(&mut cursor)?),
            3 => EventKind::Exec(Box::new(Wire::get(&mut cursor)?)),
            4 => EventKind::Limit(Wire::get(&mut cursor)?),
            5 => EventKind::Figures(Box::new(Wire::get(&mut cursor)?)),
            6 => EventKind::Exit(Wire::get(&mut cursor)?),
            7 => EventKind::Lost(Wire::get(&mut cursor)?),
            8 => EventKind::Unsupported(Wire::get(&mut cursor)?),
            9 => EventKind::Reuse(Wire::get(&mut cursor)?),
            10 => EventKind::Compressibility(Wire::get(&mut cursor)?),
            11 => EventKind::Privileges(Wire::get(&mut cursor)?),
            12 => EventKind::Contents(Box::new(Wire::get(&mut cursor)?)),
            13 => EventKind::Window(Wire::get(&mut cursor)?),
            14 => EventKind::File(Box::new(Wire::get(&mut cursor)?)),
            _ => return Err(Malformed("unknown kind of event")),
        };
        self.at = cursor.position();
        Ok(Event { time_ns, task, cpu, kind })
    }

    #[inline]
    fn fault(&mut self, cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
        let byte = cursor.u8()?;
        let last = self.state.last_addr();
        let addr = cursor.restore(*last)?;
        *last = addr;
        let fault = codes::fault_from_byte(byte, addr)?;
        if fault.access == Access::Unknown && self.version < Version::THREE {
            return Err(Malformed("unknown access"));
        }
        Ok(EventKind::Fault(fault))
    }
}

wire!(Lost { cause, count });
wire!(Window { start_ns, end_ns });

wire!(CloneFacts {
    [shares_memory, same_process]: "a clone uses reserved bits",
    child,
    child_tid,
    child_pid,
    flags,
});

impl Wire for ExitStatus {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(match self {
            Self::Code(value) => [0, *value],
            Self::Signal(value) => [1, *value],
            Self::Replaced => [2, 0],
            Self::Unknown => [3, 0],
        });
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        match (cursor.u8()?, cursor.u8()?) {
            (0, value) => Ok(Self::Code(value)),
            (1, value) => Ok(Self::Signal(value)),
            (2, 0) => Ok(Self::Replaced),
            (3, 0) => Ok(Self::Unknown),
            _ => Err(Malformed("unknown way to exit")),
        }
    }
}
