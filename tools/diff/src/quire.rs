//! The same program on Quire.

use crate::error::DiffError;
use crate::linux::{Start, StoreFacts, crowd, rights_of, shown_flags};
use crate::observation::{Detail, Figures, Observation, Pages, Region, Wanted};
use crate::program::names::{FOLDER, ZEROS};
use crate::program::{Call, MOST_PROCESSES, Outcome, Store, Trait};
use crate::quire_file::ProgramFile;
use crate::quire_memfd::{Descriptors, Made};
use crate::quire_segments::Segments;
use crate::sum;
use quire_arch::{Access, PAGE_SIZE, VirtAddr, VirtRange};
use quire_host::{AccessError, HostPlatform, Machine, Program, Vcpu};
use quire_mm::abi::{self, CallNumber, Files, OpenFile, UserMemory};
use quire_mm::{
    file::File,
    space::{Errno, Error, FaultError, Limits, MappedFile, Mapping, PageState, Space, VmFlags},
    thp::HugeUse,
};

pub(crate) type HostSpace<'m> = Space<'m, HostPlatform>;

/// The processes of one program.
pub(crate) struct Processes<'m> {
    start: &'m Start,
    cpu: &'m Vcpu,
    file: ProgramFile<'m>,
    /// As the processes below.
    descriptors: [Descriptors<'m>; MOST_PROCESSES as usize],
    made: Made<'m>,
    segments: Segments<'m>,
    all: [Option<HostSpace<'m>>; MOST_PROCESSES as usize],
}

/// The error of a call that is not built.
const ENOSYS: i64 = 38;

/// The number of `/dev/zero`, which no file has. Its mappings are shown as those of anonymous memory.
const ZEROS_ID: u64 = 1 << 48;

/// The open files of one of the oracle's processes.
struct Opened<'f, 'm> {
    file: &'f ProgramFile<'m>,
    memfds: &'f Descriptors<'m>,
    /// What memfds are like.
    facts: StoreFacts,
}

impl Files<HostPlatform> for Opened<'_, '_> {
    fn open_file(&self, descriptor: i32) -> Option<OpenFile> {
        let descriptor = u32::try_from(descriptor).ok()?;
        let device = OpenFile {
            id: ZEROS_ID,
            readable: true,
            writable: true,
            refused: None,
            write_refused: None,
            exec_refused: None,
            max_bytes: MappedFile::DEVICE_BYTES,
            huge_alignment: true,
            vm_flags: VmFlags::ZEROS | VmFlags::PLACES_ITSELF,
        };
        match descriptor {
            FOLDER => Some(OpenFile {
                id: 0,
                writable: false,
                refused: Some(Errno::ENODEV),
                huge_alignment: false,
                vm_flags: VmFlags::empty(),
                ..device
            }),
            ZEROS => Some(device),
            // The one that is open without access counts as not open.
            _ => self.file.described(descriptor).or_else(|| self.memfds.described(descriptor, self.facts)),
        }
    }

    fn opening(&self, descriptor: i32) -> Option<&File<'_, HostPlatform>> {
        let descriptor = u32::try_from(descriptor).ok()?;
        self.file.opening(descriptor).or_else(|| self.memfds.opening(descriptor))
    }
}

/// Writes as the program does. On Linux, `mincore` without a vector of the program's gets one outside of it:
/// then there is nothing to write to.
struct Vector<'p, 'v, 'm>(Option<&'p Program<'v, HostSpace<'m>>>);

impl UserMemory for Vector<'_, '_, '_> {
    fn write(&self, addr: VirtAddr, bytes: &[u8]) -> Result<(), FaultError> {
        let Some(program) = self.0 else { return Ok(()) };
        program.write(addr, bytes).map_err(|error| match error {
            AccessError::Fault(cause) => cause,
            // The program has no such page, however often it asks.
            _ => FaultError::Bus,
        })
    }
}

impl<'m> Processes<'m> {
    /// The first process of a program.
    pub(crate) fn new(
        machine: &'m Machine,
        cpu: &'m Vcpu,
        (start, store): (&'m Start, Store),
    ) -> Result<Self, DiffError> {
        let file = ProgramFile::new(machine, store, start.store(store)).map_err(DiffError::File)?;
        let made = Made::new(machine, file.number());
        Self::with(machine, cpu, (start, file, made)).map_err(DiffError::Space)
    }

    fn with(
        machine: &'m Machine,
        cpu: &'m Vcpu,
        (start, file, made): (&'m Start, ProgramFile<'m>, Made<'m>),
    ) -> Result<Self, Error> {
        let space = machine.memory().create_space_with(start.layout, start.limits)?.acting_with(start.rights);
        start.install(&space)?;
        let mut all = [const { None }; MOST_PROCESSES as usize];
        all[0] = Some(space);
        let descriptors = core::array::from_fn(|_| Descriptors::default());
        let segments = Segments::new(machine, start);
        Ok(Self { start, cpu, file, descriptors, made, segments, all })
    }

    /// The space of a process that lives.
    pub(crate) fn space(&self, process: u32) -> Option<&HostSpace<'m>> {
        self.all.get(process as usize)?.as_ref()
    }

    /// Which memfd a descriptor of a process is, from 1, or 0.
    pub(crate) fn memfd(&self, process: u32, descriptor: u64) -> u32 {
        let opening = self.descriptors[process as usize].opening(descriptor as u32);
        opening.map_or(0, |file| self.made.place(file.number()))
    }

    /// Makes a call or an access.
    pub(crate) fn make(&mut self, process: u32, call: Call, args: [u64; 6]) -> Outcome {
        let Some(space) = self.all.get(process as usize).and_then(Option::as_ref) else {
            return Outcome::NotMade;
        };
        let program = self.cpu.program(space);
        let addr = VirtAddr(args[0]);
        let files = Opened {
            file: &self.file,
            memfds: &self.descriptors[process as usize],
            facts: self.start.store(Store::Memory),
        };
        match call {
            Call::Read => accessed(program.read_u64(addr).map(u64::cast_signed), 0),
            Call::Write => accessed(program.write_u64(addr, args[1]).map(|()| args[1].cast_signed()), 0),
            Call::Execute => accessed(program.touch(addr, Access::Execute).map(|()| 0), 0),
            Call::Fill => {
                for page in 0..args[1].div_ceil(PAGE_SIZE) {
                    let at = VirtAddr(args[0].wrapping_add(page * PAGE_SIZE));
                    let written = program.write_u64(at, args[2].wrapping_add(page << 8));
                    if written.is_err() {
                        return accessed(written.map(|()| 0), page);
                    }
                }
                Outcome::Value(args[1].div_ceil(PAGE_SIZE).cast_signed())
            }
            Call::Fork => match space.fork() {
                Ok(child) => {
                    self.all[args[0] as usize] = Some(child);
                    self.segments.inherit(process, args[0] as u32);
                    self.descriptors[args[0] as usize] = self.descriptors[process as usize].clone();
                    Outcome::Value(0)
                }
                Err(error) => Outcome::Value(-i64::from(error.errno().0)),
            },
            Call::Exit => {
                self.all[process as usize] = None;
                self.descriptors[process as usize] = Descriptors::default();
                self.segments.settle();
                Outcome::Value(0)
            }
            Call::Setrlimit => {
                space.set_limits(self.limited(space.limits(), args[0], args[1]));
                Outcome::Value(0)
            }
            Call::SetPrivileges => {
                let wanted = rights_of(args[0]) & self.start.rights;
                self.segments.set_privileges(process, args[0]);
                self.all[process as usize] = Some(space.acting_with(wanted));
                Outcome::Value(0)
            }
            Call::Crowd => {
                let make = |call: Call, args| {
                    let number = CallNumber::from_raw(call.number());
                    abi::call(space, number, args, &files, &Vector(None)).raw().unwrap_or(-ENOSYS)
                };
                Outcome::Value(crowd(args[0], make))
            }
            _ if call.has(Trait::Ipc) => Outcome::Value(self.segments.make((process, space), call, args)),
            _ if Descriptors::are_meant(call, args) => {
                let memfds = &mut self.descriptors[process as usize];
                Outcome::Value(memfds.make(call, args, &mut self.made, (&program, space)))
            }
            Call::Pread | Call::Pwrite | Call::Ftruncate | Call::Fallocate | Call::Fsync | Call::Fcntl => {
                Outcome::Value(self.file.make(call, args, (&program, space)))
            }
            _ => {
                let into = call == Call::MincoreInto;
                if into || call == Call::Mincore {
                    self.file.bring_in();
                }
                let number = if into { Call::Mincore } else { call }.number();
                let vector = Vector(into.then_some(&program));
                match abi::call(space, CallNumber::from_raw(number), args, &files, &vector).raw() {
                    Some(value) => Outcome::Value(value),
                    None => Outcome::Unsupported,
                }
            }
        }
    }

    fn limited(&self, mut limits: Limits, resource: u64, value: u64) -> Limits {
        let hard = self.start.hard;
        match resource {
            2 => limits.data = value.min(hard.data),
            3 => limits.stack = value.min(hard.stack),
            8 => limits.locked = value.min(hard.locked),
            9 => limits.address_space = value.min(hard.address_space),
            _ => {}
        }
        limits
    }

    /// What is to be seen of a process that lives.
    pub(crate) fn observe(&self, process: u32, wanted: Wanted, seen: &mut Observation) {
        seen.clear();
        let Some(space) = self.space(process) else { return };
        let shown = VmFlags::READ | VmFlags::WRITE | VmFlags::EXEC | VmFlags::MAYSHARE;
        space.mappings().for_each(|mapping| {
            let region = region_of(&mapping, &self.made, shown);
            self.start.clip(region, |part| seen.regions.push(part));
        });
        for &(start, end) in &self.start.gaps {
            space.mappings().pagemap(VirtRange::new(VirtAddr(start), VirtAddr(end)), |pages, state| {
                let (start, end) = (pages.start().0, pages.end().0);
                match state {
                    PageState::Swapped { .. } => seen.add_swapped(start, end),
                    _ => seen.add_pages(Pages { start, end, state, large: pages.pages() > 1 }),
                }
            });
        }
        if wanted.details_until > 0 {
            detail(space, &self.made, wanted.details_until, seen);
        }
        if wanted.figures {
            let figures = space.figures();
            seen.figures = Some(Figures {
                size: figures.mapped >> 10,
                peak: figures.peak_mapped >> 10,
                locked: figures.locked >> 10,
                data: figures.data >> 10,
                stack: figures.stack >> 10,
                tables: figures.page_tables >> 10,
                pinned: 0,
                swapped: figures.swapped >> 10,
            });
        }
        if wanted.sums {
            self.sum_pages(space, seen);
            self.file.sum_up(seen);
            self.descriptors[process as usize].sum_up(seen);
            self.segments.list(space, seen);
        }
    }

    /// The vector of `mincore`, one entry a page; none where it fails.
    pub(crate) fn mincore(&self, process: u32, addr: u64, len: u64) -> Vec<bool> {
        let mut pages = Vec::new();
        if let Some(space) = self.space(process) {
            let told = space.mincore(VirtAddr(addr), len, |resident| pages.push(resident));
            if told.is_err() {
                pages.clear();
            }
        }
        pages
    }

    fn sum_pages(&self, space: &HostSpace<'m>, seen: &mut Observation) {
        let program = self.cpu.program(space);
        let mut page = [0; PAGE_SIZE as usize];
        let mut regions = seen.regions.iter().peekable();
        let has_contents = |pages: &&Pages| !matches!(pages.state, PageState::Zero | PageState::Guard);
        for pages in seen.pages.iter().filter(has_contents) {
            for addr in (pages.start..pages.end).step_by(PAGE_SIZE as usize) {
                while regions.next_if(|region| region.end <= addr).is_some() {}
                let readable = VmFlags::READ | VmFlags::WRITE;
                if regions.peek().is_some_and(|region| region.flags.intersects(readable))
                    && program.read(VirtAddr(addr), &mut page).is_ok()
                {
                    seen.sums.push((addr, sum::of_page(&page)));
                }
            }
        }
    }
}

fn region_of(mapping: &Mapping, made: &Made<'_>, shown: VmFlags) -> Region {
    let shared = mapping.flags.contains(VmFlags::MAYSHARE);
    let memfd = mapping.file.map_or(0, |number| made.place(number));
    let file = mapping.file == Some(made.file());
    let region = Region {
        start: mapping.range.start().0,
        end: mapping.range.end().0,
        flags: mapping.flags & shown,
        offset: mapping.page_offset * PAGE_SIZE,
        file,
        memfd,
    };
    Region { offset: if shared || region.is_cached() { region.offset } else { 0 }, ..region }
}

/// Lists the mappings as `smaps` does, with the sizes recounted from the pages.
fn detail(space: &HostSpace<'_>, made: &Made<'_>, until: u64, seen: &mut Observation) {
    let shown = shown_flags();
    let mut pages = seen.pages.iter().peekable();
    space.mappings().for_each(|mapping| {
        let region = region_of(&mapping, made, shown);
        if region.start >= until {
            return;
        }
        let (mut resident, mut anonymous, mut large) = (0, 0, 0);
        while pages.next_if(|run| run.end <= region.start).is_some() {}
        let mut rest = pages.clone();
        while let Some(run) = rest.next_if(|run| run.start < region.end) {
            let bytes = run.end.min(region.end) - run.start.max(region.start);
            resident += if matches!(run.state, PageState::Zero | PageState::Guard) { 0 } else { bytes >> 10 };
            let own = if run.state == PageState::Anonymous { bytes >> 10 } else { 0 };
            anonymous += own;
            large += if run.large { own } else { 0 };
        }
        let Region { start, end, flags, .. } = region;
        let out = seen.swapped.iter().map(|run| run.1.min(end).saturating_sub(run.0.max(start)));
        let swapped = out.sum::<u64>() >> 10;
        seen.details.push(Detail { start, end, flags, resident, anonymous, swapped, large, eligible: false });
    });
    for detail in &mut seen.details {
        detail.eligible = !space.mappings().huge_orders(HugeUse::Smaps, VirtAddr(detail.start)).is_empty();
    }
}

fn accessed(result: Result<i64, AccessError<FaultError>>, done: u64) -> Outcome {
    const SIGBUS: u32 = 7;
    const SIGSEGV: u32 = 11;
    let signal = |signal, code| Outcome::Signal { signal, code, done };
    match result {
        Ok(value) => Outcome::Value(value),
        Err(AccessError::Fault(FaultError::NotMapped)) => signal(SIGSEGV, 1),
        Err(AccessError::Fault(FaultError::AccessDenied)) => signal(SIGSEGV, 2),
        Err(AccessError::Fault(FaultError::Bus | FaultError::PastEnd)) => signal(SIGBUS, 2),
        // A program must never run out of memory or fault for ever.
        Err(AccessError::Fault(FaultError::OutOfMemory(_))) => signal(9, 0),
        Err(_) => Outcome::Unsupported,
    }
}
