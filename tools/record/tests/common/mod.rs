//! A simple model of address spaces, to check that a trace makes sense in the order that it is in.

use quire_trace::event::{
    Call, CloneFacts, Denial, Event, EventKind, ExecImage, Fault, LostCause, Outcome, TaskId, Unsupported,
};
use std::collections::{BTreeMap, HashMap};

const PAGE: u64 = 4096;
/// `MAP_FIXED`, `MAP_FIXED_NOREPLACE`, `MREMAP_DONTUNMAP`.
const FIXED: u64 = 0x10;
const DONTUNMAP: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Area {
    end: u64,
    prot: u64,
    grows_down: bool,
}

/// Mappings by start address.
#[derive(Debug, Clone, Default)]
struct Space {
    areas: BTreeMap<u64, Area>,
    brk: u64,
    start_brk: u64,
}

impl Space {
    fn new(image: &ExecImage) -> Self {
        let areas = image.mappings.iter().map(|mapping| {
            let prot =
                u64::from(mapping.read) | u64::from(mapping.write) << 1 | u64::from(mapping.execute) << 2;
            let grows_down = mapping.flags.has(*b"gd");
            (mapping.start, Area { end: mapping.end, prot, grows_down })
        });
        Self { areas: areas.collect(), brk: image.brk, start_brk: image.start_brk }
    }

    fn at(&self, addr: u64) -> Option<&Area> {
        self.areas.range(..=addr).next_back().map(|(_, area)| area).filter(|area| addr < area.end)
    }

    fn is_free(&self, start: u64, end: u64) -> bool {
        self.areas.range(..end).next_back().is_none_or(|(_, area)| area.end <= start)
    }

    fn split(&mut self, at: u64) {
        let found = self.areas.range_mut(..at).next_back().filter(|(_, area)| at < area.end);
        if let Some((_, area)) = found {
            let upper = *area;
            area.end = at;
            self.areas.insert(at, upper);
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        let gone: Vec<u64> = self.areas.range(start..end).map(|(start, _)| *start).collect();
        for start in gone {
            self.areas.remove(&start);
        }
    }

    fn insert(&mut self, start: u64, end: u64, prot: u64) {
        self.areas.insert(start, Area { end, prot, grows_down: false });
    }

    fn protect(&mut self, start: u64, end: u64, prot: u64) {
        self.split(start);
        self.split(end);
        for (_, area) in self.areas.range_mut(start..end) {
            area.prot = prot;
        }
    }

    /// Lets a stack grow down to an address, if there is one close above it.
    fn grow(&mut self, addr: u64) {
        let next = self.areas.range(addr..).next().map(|(start, area)| (*start, *area));
        if let Some((start, area)) = next.filter(|(_, area)| area.grows_down) {
            self.areas.remove(&start);
            self.areas.insert(addr & !(PAGE - 1), area);
        }
    }
}

/// All spaces of a trace, and what was found wrong.
#[derive(Debug, Default)]
pub(crate) struct Model {
    spaces: Vec<Space>,
    space_of: HashMap<TaskId, usize>,
    lost: bool,
    ignored: Vec<usize>,
    pub(crate) wrong: Vec<String>,
    pub(crate) placed: u64,
    pub(crate) checked_faults: u64,
    pub(crate) denied: u64,
}

impl Model {
    /// Plays a whole trace.
    pub(crate) fn play(events: &[Event]) -> Self {
        let mut model = Self::default();
        let mut last = 0;
        for (number, event) in events.iter().enumerate() {
            if event.time_ns < last {
                model.wrong.push(format!("event {number} is before the one ahead of it"));
            }
            last = event.time_ns;
            model.event(number, event);
        }
        model
    }

    fn event(&mut self, number: usize, event: &Event) {
        // What follows may have no sense without what is missing.
        if self.lost {
            return;
        }
        match &event.kind {
            EventKind::Exec(image) => {
                self.spaces.push(Space::new(image));
                self.space_of.insert(event.task, self.spaces.len() - 1);
            }
            EventKind::Clone(CloneFacts { child, shares_memory, .. }) => {
                let Some(mut space) = self.space_of.get(&event.task).copied() else {
                    return self.wrong.push(format!("{number}: unknown maker {event:?}"));
                };
                if !shares_memory {
                    self.spaces.push(self.spaces[space].clone());
                    space = self.spaces.len() - 1;
                }
                if self.space_of.insert(*child, space).is_some() {
                    self.wrong.push(format!("{number}: born twice {event:?}"));
                }
            }
            EventKind::Lost(lost) => self.lost |= lost.cause != LostCause::Damage,
            EventKind::Unsupported(Unsupported::ForeignAbi) => {
                self.ignored.extend(self.space_of.get(&event.task));
            }
            EventKind::Call(call) => {
                if let Some(space) = self.known(number, event) {
                    self.call(number, space, call);
                }
            }
            EventKind::Fault(fault) => {
                if let Some(space) = self.known(number, event) {
                    self.fault(number, space, fault);
                }
            }
            EventKind::Exit(_) => {
                if self.space_of.remove(&event.task).is_none() {
                    self.wrong.push(format!("{number}: unknown thread ends {event:?}"));
                }
            }
            EventKind::Limit(_)
            | EventKind::Figures(_)
            | EventKind::Reuse(_)
            | EventKind::Compressibility(_)
            | EventKind::Contents(_)
            | EventKind::Window(_)
            | EventKind::File(_)
            | EventKind::Privileges(_) => {}
        }
    }

    fn known(&mut self, number: usize, event: &Event) -> Option<usize> {
        let space = self.space_of.get(&event.task).copied();
        if space.is_none() {
            self.wrong.push(format!("{number}: unknown thread {event:?}"));
        }
        space.filter(|space| !self.ignored.contains(space))
    }

    fn call(&mut self, number: usize, space: usize, call: &Call) {
        let space = &mut self.spaces[space];
        if call.errno().is_some() {
            return;
        }
        let [a, b, c, d, e, _] = call.args;
        let result = call.result as u64;
        let pages = |len: u64| len.next_multiple_of(PAGE);
        match i64::from(call.number) {
            libc::SYS_mmap => {
                self.placed += 1;
                if d & FIXED != 0 {
                    space.remove(result, result + pages(b));
                } else if !space.is_free(result, result + pages(b)) {
                    self.wrong.push(format!("{number}: placed on live memory {call:x?}"));
                }
                space.insert(result, result + pages(b), c);
            }
            libc::SYS_munmap => space.remove(a, a + pages(b)),
            libc::SYS_mprotect | libc::SYS_pkey_mprotect => space.protect(a, a + pages(b), c),
            libc::SYS_mremap => {
                let prot = space.at(a).map(|area| area.prot);
                let Some(prot) = prot else {
                    return self.wrong.push(format!("{number}: moved what is not there {call:x?}"));
                };
                if d & DONTUNMAP == 0 {
                    space.remove(a, a + pages(b));
                }
                if d & 2 != 0 {
                    space.remove(e, e + pages(c));
                }
                if !space.is_free(result, result + pages(c)) {
                    self.wrong.push(format!("{number}: moved onto live memory {call:x?}"));
                }
                space.insert(result, result + pages(c), prot);
            }
            libc::SYS_brk => {
                let (old, new) = (pages(space.brk), pages(result));
                if new > old {
                    if !space.is_free(old, new) {
                        self.wrong.push(format!("{number}: heap onto live memory {call:x?}"));
                    }
                    space.insert(old, new, 3);
                } else if new < old && new >= space.start_brk {
                    space.remove(new, old);
                }
                space.brk = result;
            }
            _ => {}
        }
    }

    fn fault(&mut self, number: usize, space: usize, fault: &Fault) {
        let space = &mut self.spaces[space];
        let wanted = fault.access as u64;
        match fault.outcome {
            Outcome::Minor | Outcome::Major => {
                if space.at(fault.addr).is_none() {
                    space.grow(fault.addr);
                }
                let Some(area) = space.at(fault.addr) else {
                    return self.wrong.push(format!("{number}: nothing is mapped for {fault:x?}"));
                };
                let allowed = match wanted {
                    0 => area.prot & 7 != 0,
                    1 => area.prot & 2 != 0,
                    // Not known which.
                    3 => area.prot != 0,
                    _ => area.prot & 4 != 0,
                };
                // Shared libraries are patched before they become read-only, so this sees order, too.
                if !allowed && !fault.inferred {
                    self.wrong.push(format!("{number}: not allowed {fault:x?}"));
                }
                self.checked_faults += 1;
            }
            Outcome::Denied(denial) => {
                self.denied += 1;
                let mapped = space.at(fault.addr).is_some();
                if mapped == (denial == Denial::NotMapped) {
                    self.wrong.push(format!("{number}: denied in the wrong place {fault:x?}"));
                }
            }
            Outcome::Unresolved | Outcome::Unknown => {}
        }
    }

    /// Fails if anything was found wrong.
    pub(crate) fn check(&self) {
        let some: Vec<&String> = self.wrong.iter().take(10).collect();
        assert!(self.wrong.is_empty(), "{} things are wrong: {some:#?}", self.wrong.len());
    }
}
