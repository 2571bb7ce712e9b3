//! What a trace needs: found by looking it through once.

use super::overcommit;
use crate::event::{Event, EventKind, TaskId};
use crate::format::TraceHeader;
use quire_mm::Overcommit;
use std::collections::HashMap;

/// What is known of a trace after it was looked through.
#[derive(Debug)]
pub struct Needs {
    events: u64,
    overcommit_mode: u8,
    /// Which address space each thread is in.
    spaces: HashMap<TaskId, usize>,
    /// Pages that each address space may have resident at once, and how many threads use it.
    images: Vec<Pages>,
    now: u64,
    most: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pages {
    resident: u64,
    users: u32,
}

/// Pages that a replay needs beside the program's: tables, slabs, lists, and Linux's watermarks.
const SPARE_BYTES: u64 = 64 << 20;

impl Needs {
    pub(super) fn new(_header: &TraceHeader) -> Self {
        Self { events: 0, overcommit_mode: 0, spaces: HashMap::new(), images: Vec::new(), now: 0, most: 0 }
    }

    /// Number of events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Bytes of RAM with which nothing runs short: every page that was ever touched in the address spaces that
    /// live at once, and a fifth more.
    pub fn ram(&self) -> u64 {
        let pages = self.most + self.most / 5;
        (pages * 4096 + SPARE_BYTES).next_multiple_of(4 << 20)
    }

    pub(super) fn overcommit(&self, header: &TraceHeader) -> Overcommit {
        overcommit(self.overcommit_mode, header)
    }

    pub(super) fn add(&mut self, event: &Event) {
        self.events += 1;
        match &event.kind {
            EventKind::Fault(_) => self.grow(event.task, 1),
            EventKind::Call(call) => {
                let len = call.args[1];
                // POPULATE and LOCKED fault pages in without a fault event, and so do mlock and some advice.
                let populates = match call.number {
                    9 => call.args[3] & (0x8000 | 0x2000) != 0,
                    28 => matches!(call.args[2], 22 | 23),
                    149 | 325 => true,
                    _ => false,
                };
                if call.errno().is_none() && populates {
                    self.grow(event.task, len.div_ceil(4096));
                }
            }
            EventKind::Exec(image) => {
                self.overcommit_mode = image.overcommit_memory;
                self.leave(event.task);
                let resident = image.mappings.iter().flat_map(|mapping| &mapping.resident);
                let pages = resident.map(|run| run.pages).sum();
                self.enter(event.task, pages);
            }
            EventKind::Clone(clone) => {
                let Some(&space) = self.spaces.get(&event.task) else { return };
                if clone.shares_memory {
                    self.images[space].users += 1;
                    self.spaces.insert(clone.child, space);
                } else {
                    let pages = self.images[space].resident;
                    self.enter(clone.child, pages);
                }
            }
            EventKind::Exit(_) => self.leave(event.task),
            _ => {}
        }
    }

    fn grow(&mut self, task: TaskId, pages: u64) {
        if let Some(&space) = self.spaces.get(&task) {
            self.images[space].resident += pages;
            self.now += pages;
            self.most = self.most.max(self.now);
        }
    }

    fn enter(&mut self, task: TaskId, pages: u64) {
        self.images.push(Pages { resident: 0, users: 1 });
        self.spaces.insert(task, self.images.len() - 1);
        self.grow(task, pages);
    }

    fn leave(&mut self, task: TaskId) {
        if let Some(space) = self.spaces.remove(&task) {
            let image = &mut self.images[space];
            image.users -= 1;
            if image.users == 0 {
                self.now -= image.resident;
            }
        }
    }
}
