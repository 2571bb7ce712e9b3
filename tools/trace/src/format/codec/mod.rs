//! Events as bytes.
//!
//! Numbers are stored as differences from the event before; all state begins anew with each block, so that a
//! block can be decoded alone.

mod call;
mod codes;
mod figures;
mod image;
mod reuse;

use super::Version;
use super::varint::{Cursor, Malformed, put_u64, zigzag};
use crate::event::{
    Access, CloneFacts, Event, EventKind, ExitStatus, Fault, FileFacts, Lost, TaskId, Unsupported,
};
use codes::Code;
use std::collections::HashMap;
use std::sync::Arc;

const SAME_TASK: u8 = 0x10;
const SAME_CPU: u8 = 0x20;
const KIND_MASK: u8 = 0x0f;
const RESERVED: u8 = 0xc0;

/// Threads share this many places for their last address: bounded, whatever a file claims.
const SLOTS: usize = 64;

/// What both sides remember from the events before, within a block.
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

fn difference(new: u64, old: u64) -> u64 {
    zigzag(new.wrapping_sub(old) as i64)
}

fn restore(difference: i64, old: u64) -> u64 {
    old.wrapping_add(difference as u64)
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
            EventKind::Clone(facts) => self.clone_facts(facts),
            EventKind::Exec(image) => image::put(&mut self.out, image),
            EventKind::Limit(limit) => call::put_limit(&mut self.out, limit),
            EventKind::Figures(figures) => figures::put(&mut self.out, figures),
            EventKind::Exit(status) => self.exit(*status),
            EventKind::Lost(lost) => {
                self.out.push(lost.cause.code());
                put_u64(&mut self.out, lost.count);
            }
            EventKind::Unsupported(Unsupported::ForeignAbi) => self.out.push(0),
            EventKind::Reuse(reuse) => reuse::put(&mut self.out, reuse),
            EventKind::Compressibility(sample) => reuse::put_compressibility(&mut self.out, sample),
            EventKind::Privileges(privileges) => image::put_privileges(&mut self.out, *privileges),
        }
    }

    fn fault(&mut self, fault: &Fault) {
        self.out.push(codes::fault_byte(fault));
        let last = self.state.last_addr();
        let difference = difference(fault.addr, *last);
        *last = fault.addr;
        put_u64(&mut self.out, difference);
    }

    fn clone_facts(&mut self, facts: &CloneFacts) {
        self.out.push(u8::from(facts.shares_memory) | u8::from(facts.same_process) << 1);
        for number in [facts.child.0, facts.child_tid, facts.child_pid] {
            put_u64(&mut self.out, u64::from(number));
        }
        put_u64(&mut self.out, facts.flags);
    }

    fn exit(&mut self, status: ExitStatus) {
        let (code, value) = match status {
            ExitStatus::Code(value) => (0, value),
            ExitStatus::Signal(value) => (1, value),
            ExitStatus::Replaced => (2, 0),
            ExitStatus::Unknown => (3, 0),
        };
        self.out.extend([code, value]);
    }
}

/// Where a decoder stands in a block. The bytes are kept by the caller, who may refill them for the next.
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
        let mut cursor = Cursor::new(bytes, self.at);
        let tag = cursor.u8()?;
        if tag & RESERVED != 0 {
            return Err(Malformed("an event uses reserved bits"));
        }
        let state = &mut self.state;
        state.time = restore(cursor.i64()?, state.time);
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
            2 => clone_facts(&mut cursor)?,
            3 => EventKind::Exec(Box::new(image::get(&mut cursor, self.version)?)),
            4 => EventKind::Limit(call::get_limit(&mut cursor)?),
            5 => EventKind::Figures(Box::new(figures::get(&mut cursor, self.version)?)),
            6 => exit(&mut cursor)?,
            7 => {
                let cause = Code::from_code(cursor.u8()?)?;
                EventKind::Lost(Lost { cause, count: cursor.u64()? })
            }
            8 => match cursor.u8()? {
                0 => EventKind::Unsupported(Unsupported::ForeignAbi),
                _ => return Err(Malformed("unknown reason for an unsupported event")),
            },
            9 => reuse::get(&mut cursor)?,
            10 => reuse::get_compressibility(&mut cursor)?,
            11 => EventKind::Privileges(image::get_privileges(&mut cursor)?),
            _ => return Err(Malformed("unknown kind of event")),
        };
        self.at = cursor.position();
        Ok(Event { time_ns, task, cpu, kind })
    }

    #[inline]
    fn fault(&mut self, cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
        let byte = cursor.u8()?;
        let last = self.state.last_addr();
        let addr = restore(cursor.i64()?, *last);
        *last = addr;
        let fault = codes::fault_from_byte(byte, addr)?;
        if fault.access == Access::Unknown && self.version < Version::THREE {
            return Err(Malformed("unknown access"));
        }
        Ok(EventKind::Fault(fault))
    }
}

fn clone_facts(cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
    let bits = cursor.u8()?;
    if bits > 3 {
        return Err(Malformed("a clone uses reserved bits"));
    }
    Ok(EventKind::Clone(CloneFacts {
        child: TaskId(cursor.u32()?),
        child_tid: cursor.u32()?,
        child_pid: cursor.u32()?,
        flags: cursor.u64()?,
        shares_memory: bits & 1 != 0,
        same_process: bits & 2 != 0,
    }))
}

fn exit(cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
    let (code, value) = (cursor.u8()?, cursor.u8()?);
    Ok(EventKind::Exit(match (code, value) {
        (0, value) => ExitStatus::Code(value),
        (1, value) => ExitStatus::Signal(value),
        (2, 0) => ExitStatus::Replaced,
        (3, 0) => ExitStatus::Unknown,
        _ => return Err(Malformed("unknown way to exit")),
    }))
}
