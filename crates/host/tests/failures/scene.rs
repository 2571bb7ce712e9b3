//! The state that a scenario works on, and what a failure must leave as it was.

use crate::common::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Four pages below the border of every level of tables.
pub(crate) const BASE: u64 = (1 << 39) - 4 * PAGE;

/// One space and what a scenario makes beside it.
pub(crate) struct Scene<'m> {
    pub(crate) machine: &'m Machine,
    pub(crate) cpu: &'m Vcpu,
    pub(crate) space: HostSpace<'m>,
    /// Children and other images.
    pub(crate) others: RefCell<Vec<HostSpace<'m>>>,
    /// Files that the scenario holds open.
    pub(crate) files: RefCell<Vec<File<'m, HostPlatform>>>,
    /// Pages that a device uses.
    pub(crate) pins: RefCell<Vec<PinnedPage<'m, HostPlatform>>>,
    /// Swap devices in use; they go with the scene.
    pub(crate) devices: RefCell<Vec<DeviceId>>,
    /// The address that the last successful attempt returned.
    pub(crate) returned: Cell<VirtAddr>,
}

impl<'m> Scene<'m> {
    pub(crate) fn new(machine: &'m Machine, cpu: &'m Vcpu) -> Self {
        let space = create_space(machine);
        Self {
            machine,
            cpu,
            space,
            others: RefCell::default(),
            files: RefCell::default(),
            pins: RefCell::default(),
            devices: RefCell::default(),
            returned: Cell::default(),
        }
    }

    pub(crate) fn write(&self, addr: u64, value: u64) -> AccessResult<()> {
        self.write_in(&self.space, addr, value)
    }

    pub(crate) fn read(&self, addr: u64) -> AccessResult<u64> {
        self.read_in(&self.space, addr)
    }

    pub(crate) fn write_in(&self, space: &HostSpace<'_>, addr: u64, value: u64) -> AccessResult<()> {
        self.cpu.program(space).write_u64(VirtAddr(addr), value)
    }

    pub(crate) fn read_in(&self, space: &HostSpace<'_>, addr: u64) -> AccessResult<u64> {
        self.cpu.program(space).read_u64(VirtAddr(addr))
    }

    /// Panics unless the pages hold what [`filled`] wrote.
    #[track_caller]
    pub(crate) fn assert_filled(&self, pages: impl IntoIterator<Item = u64>) {
        for at in pages {
            assert_eq!(self.read(BASE + at * PAGE), Ok(100 + at), "page {at}");
        }
    }

    /// Keeps the address that a call returned, for the checks.
    pub(crate) fn keep(&self, addr: VirtAddr) {
        self.returned.set(addr);
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        for id in self.devices.take() {
            let gone = self.machine.memory().swapoff(id, || true);
            assert!(gone.is_ok() || std::thread::panicking(), "{gone:?}");
        }
    }
}

/// A scene with nothing in it.
pub(crate) fn empty(_: &Scene<'_>) {}

/// Maps 16 pages around [`BASE`] and writes to each.
pub(crate) fn filled(scene: &Scene<'_>) {
    map_at(&scene.space, BASE, 16 * PAGE, RW);
    for at in 0..16 {
        scene.write(BASE + at * PAGE, 100 + at).expect("there is memory");
    }
}

/// Maps 8 untouched pages at [`BASE`].
pub(crate) fn small(scene: &Scene<'_>) {
    map_at(&scene.space, BASE, 8 * PAGE, RW);
}

/// A fork as what is attempted.
pub(crate) fn fork_once(scene: &Scene<'_>) -> Result<(), Error> {
    let child = scene.space.fork()?;
    scene.others.borrow_mut().push(child);
    Ok(())
}

/// An access by a program, with the failure of a call.
pub(crate) fn access<T>(result: AccessResult<T>) -> Result<(), Error> {
    result.map(drop).map_err(|error| match error {
        AccessError::Fault(FaultError::OutOfMemory(cause)) => Error::NoFrames(cause),
        // What a call returns for a page that cannot be read.
        AccessError::Fault(FaultError::Bus) => Error::BadAddress,
        other => panic!("{other}"),
    })
}

/// What the spaces of a scene hold at a moment.
#[derive(PartialEq, Debug)]
pub(crate) struct Snapshot {
    spaces: Vec<Image>,
    /// All spaces of the machine.
    count: usize,
    /// Pages that are charged to the commit count.
    promised: u64,
}

#[derive(PartialEq, Debug)]
struct Image {
    mappings: Vec<(u64, u64, VmFlags)>,
    /// The first word of each page that is in memory and may be read.
    words: BTreeMap<u64, u64>,
    program_break: VirtAddr,
    mapped: u64,
    data: u64,
    locked: u64,
    resident: u64,
    page_tables: u64,
}

impl Snapshot {
    pub(crate) fn of(scene: &Scene<'_>) -> Self {
        let others = scene.others.borrow();
        let spaces = std::iter::once(&scene.space).chain(others.iter());
        Self {
            spaces: spaces.map(|space| Image::of(scene, space)).collect(),
            count: scene.machine.memory().spaces().count(),
            promised: scene.machine.memory().spaces().commit().promised(),
        }
    }

    /// Panics unless every page that was in memory before reads as before.
    pub(crate) fn assert_words_kept(&self, before: &Self) {
        assert_eq!(self.spaces.len(), before.spaces.len(), "a failure made or lost a space");
        for (now, before) in self.spaces.iter().zip(&before.spaces) {
            for (addr, word) in &before.words {
                assert_eq!(now.words.get(addr), Some(word), "the page at {addr:#x}");
            }
        }
    }
}

impl Image {
    fn of(scene: &Scene<'_>, space: &HostSpace<'_>) -> Self {
        let figures = space.figures();
        let mappings = mappings(space);
        let mut words = BTreeMap::new();
        for &(start, end, flags) in &mappings {
            let mut resident = Vec::new();
            space.mincore(VirtAddr(start), end - start, |is| resident.push(is)).expect("it is mapped");
            let pages = (start..end).step_by(PAGE as usize).zip(resident);
            for (addr, _) in pages.filter(|&(_, is)| is && flags.contains(VmFlags::READ)) {
                words.insert(addr, scene.read_in(space, addr).expect("it is in memory"));
            }
        }
        Self {
            mappings,
            words,
            program_break: space.program_break(),
            mapped: figures.mapped,
            data: figures.data,
            locked: figures.locked,
            resident: figures.resident,
            page_tables: figures.page_tables,
        }
    }
}
