//! Programs: they run on a vCPU in guest mode and access memory through the MMU.

use crate::counters::Event;
use crate::cpu::current::Stay;
use crate::cpu::{Cpu, Owner, current};
use crate::machine::{MachineId, SharedMachine};
use crate::mmu::{self, data};
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use quire_arch::paging::X86_64Level4;
use quire_arch::{Access, CpuId, PAGE_SIZE, PagingFormat, Pfn, VirtAddr};

/// The memory manager's side of a program: the space that its accesses go to.
///
/// # Safety
///
/// Programs use the tables without looking at them. An implementation guarantees that, as long as the value
/// is borrowed,
/// - [`machine`](Self::machine) and [`root`](Self::root) are always the same, and there is the root of page
///   tables;
/// - what the tables lead to is freed only after a shootdown that covers it has reached the CPUs on which the
///   root was made current and no other since, and the tables at the root are not freed at all;
/// - [`is_current`](Self::is_current) is true only where the root was made current on the CPU for this space, by
///   [`activate`](Self::activate), and no other since.
pub unsafe trait ProgramSpace {
    /// Why a fault cannot be resolved (the signal that the program gets).
    type Error;

    /// The machine in whose RAM the tables are.
    fn machine(&self) -> MachineId;

    /// The root of the space's tables.
    fn root(&self) -> Pfn;

    /// Makes the space's tables the calling CPU's current ones, by
    /// [`Platform::activate`](quire_arch::Platform::activate). Called before the first access, and again when
    /// another space was made current on the CPU meanwhile. Not pinned.
    fn activate(&self);

    /// Whether `cpu`, which calls this, has run the space ever since it last became the current one there. A
    /// program is spared [`activate`](Self::activate) then. False if that is not known.
    #[inline]
    fn is_current(&self, cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }

    /// Resolves a page fault at `addr`, so that the access can be tried again. Not pinned; may sleep.
    fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), Self::Error>;
}

/// Why a program's access failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AccessError<E> {
    /// The space could not resolve the fault.
    Fault(E),
    /// The space claimed [`STUCK_AFTER`] times in a row to have resolved the fault, and the access faulted
    /// again.
    Stuck {
        /// The address.
        addr: VirtAddr,
        /// The access.
        access: Access,
    },
    /// The space is not one for the vCPU: it is of another machine, or did not become current there.
    NotCurrent,
}

/// How the MMU found the page of a successful access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// The TLB had it.
    Tlb,
    /// It was not in the TLB, and present in the page tables.
    Tables,
    /// The space resolved at least one page fault first.
    Fault,
}

/// Faults of one access in a row after which it is given up. A page may be removed again before the program
/// uses it, so a few are natural under pressure.
pub const STUCK_AFTER: u32 = 1000;

impl<E: fmt::Display> fmt::Display for AccessError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(error) => write!(f, "unresolved page fault: {error}"),
            Self::Stuck { addr, access } => {
                write!(f, "{access:?} of {addr:#x} faults again after {STUCK_AFTER} resolved faults")
            }
            Self::NotCurrent => write!(f, "the space is not one for this vCPU"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for AccessError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fault(error) => Some(error),
            Self::Stuck { .. } | Self::NotCurrent => None,
        }
    }
}

/// A program's borrow of its vCPU's handle.
#[derive(Clone, Copy)]
pub(crate) struct Seat<'v> {
    pub(crate) machine: &'v SharedMachine,
    pub(crate) cpu: &'v Cpu,
    /// Calls through the handle under way.
    pub(crate) stays: &'v Cell<u64>,
}

impl<'v> Seat<'v> {
    /// Puts the thread on the vCPU.
    #[inline]
    pub(crate) fn stay(self, inside: bool) -> Stay<'v> {
        Stay::begin(&self.machine.cpus, self.cpu, self.stays, inside)
    }
}

/// A program on a vCPU. Each access enters guest mode and leaves it; [`inside`](Self::inside) makes many at
/// once.
pub struct Program<'v, S, F: PagingFormat = X86_64Level4> {
    seat: Seat<'v>,
    space: &'v S,
    format: PhantomData<fn() -> F>,
    /// The CPU's count of activations when the space was made current.
    activation: Cell<u64>,
}

impl<'v, S: ProgramSpace, F: PagingFormat> Program<'v, S, F> {
    pub(crate) fn new(seat: Seat<'v>, space: &'v S) -> Self {
        // A number that no count reaches.
        Self { seat, space, format: PhantomData, activation: Cell::new(u64::MAX) }
    }

    /// Calls `action` in guest mode. Between accesses the vCPU serves shootdowns; code that computes for long
    /// without an access should call [`Guest::poll`], since initiators wait for it. Kernel code may be called
    /// from `action`: pinned sections leave guest mode, and the next access enters it again.
    ///
    /// # Panics
    ///
    /// In a pinned section of the machine. An access panics there too, and where the thread is on another
    /// vCPU of the machine by then: it would serve no shootdowns of the program's.
    #[inline]
    pub fn inside<R>(&self, action: impl FnOnce(&mut Guest<'_, S, F>) -> R) -> R {
        let stay = self.seat.stay(true);
        action(&mut Guest { program: self, owner: stay.owner() })
    }

    /// See [`Guest::read`].
    pub fn read(&self, addr: VirtAddr, into: &mut [u8]) -> Result<(), AccessError<S::Error>> {
        self.inside(|guest| guest.read(addr, into))
    }

    /// See [`Guest::write`].
    pub fn write(&self, addr: VirtAddr, data: &[u8]) -> Result<(), AccessError<S::Error>> {
        self.inside(|guest| guest.write(addr, data))
    }

    /// See [`Guest::read_u64`].
    pub fn read_u64(&self, addr: VirtAddr) -> Result<u64, AccessError<S::Error>> {
        self.inside(|guest| guest.read_u64(addr))
    }

    /// See [`Guest::write_u64`].
    pub fn write_u64(&self, addr: VirtAddr, value: u64) -> Result<(), AccessError<S::Error>> {
        self.inside(|guest| guest.write_u64(addr, value))
    }

    /// See [`Guest::touch`].
    pub fn touch(&self, addr: VirtAddr, access: Access) -> Result<(), AccessError<S::Error>> {
        self.inside(|guest| guest.touch(addr, access))
    }

    /// See [`Guest::translate_for`].
    pub fn translate_for(
        &self,
        addr: VirtAddr,
        access: Access,
    ) -> Result<Translation, AccessError<S::Error>> {
        self.inside(|guest| guest.translate_for(addr, access))
    }
}

impl<S, F: PagingFormat> fmt::Debug for Program<'_, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("cpu", &self.seat.cpu.id).finish_non_exhaustive()
    }
}

/// A program in guest mode.
pub struct Guest<'g, S, F: PagingFormat = X86_64Level4> {
    program: &'g Program<'g, S, F>,
    owner: Owner<'g>,
}

impl<S: ProgramSpace, F: PagingFormat> Guest<'_, S, F> {
    /// Serves shootdowns, as every access does.
    pub fn poll(&mut self) {
        // If the space cannot become current, the next access says so.
        let _: Result<(), AccessError<S::Error>> = self.be_inside();
    }

    /// Reads `into.len()` bytes from `addr` on. Atomic by aligned 8-byte words, not as a whole.
    pub fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), AccessError<S::Error>> {
        let mut at = addr;
        for part in PageParts::new(addr, into.len()) {
            let from = self.locate(at, Access::Read)?;
            // SAFETY: the part lies in the page that was located, which is the program's until the next poll.
            unsafe { data::read(from.as_ptr(), &mut into[part.clone()]) };
            at = VirtAddr(at.0.wrapping_add(part.len() as u64));
        }
        Ok(())
    }

    /// Writes `data` from `addr` on. Atomic by aligned 8-byte words, not as a whole; what precedes an
    /// unresolved fault is written.
    pub fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), AccessError<S::Error>> {
        let mut at = addr;
        for part in PageParts::new(addr, data.len()) {
            let to = self.locate(at, Access::Write)?;
            // SAFETY: as in `read`.
            unsafe { data::write(to.as_ptr(), &data[part.clone()]) };
            at = VirtAddr(at.0.wrapping_add(part.len() as u64));
        }
        Ok(())
    }

    /// Reads the 8 bytes at `addr`, atomically if it is a multiple of 8.
    #[inline]
    pub fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, AccessError<S::Error>> {
        if addr.is_aligned(8) {
            let from = self.locate(addr, Access::Read)?;
            // SAFETY: an aligned word lies in one page; otherwise as in `read`.
            return Ok(unsafe { data::read_word(from.as_ptr()) });
        }
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Writes the 8 bytes at `addr`, atomically if it is a multiple of 8.
    #[inline]
    pub fn write_u64(&mut self, addr: VirtAddr, value: u64) -> Result<(), AccessError<S::Error>> {
        if addr.is_aligned(8) {
            let to = self.locate(addr, Access::Write)?;
            // SAFETY: as in `read_u64`.
            unsafe { data::write_word(to.as_ptr(), value) };
            return Ok(());
        }
        self.write(addr, &value.to_ne_bytes())
    }

    /// Takes one access through the MMU, with its checks, bits and faults, but moves no data.
    #[inline]
    pub fn touch(&mut self, addr: VirtAddr, access: Access) -> Result<(), AccessError<S::Error>> {
        self.locate(addr, access).map(|_| ())
    }

    /// As [`touch`](Self::touch), and returns how the page was found.
    pub fn translate_for(
        &mut self,
        addr: VirtAddr,
        access: Access,
    ) -> Result<Translation, AccessError<S::Error>> {
        // Only this thread adds to the counters of its CPU, so what they gain is this access's.
        let counters = &self.owner.cpu().counters;
        let (faults, hits) = (counters.get(Event::Fault), counters.get(Event::TlbHit));
        self.locate(addr, access)?;
        let counters = &self.owner.cpu().counters;
        Ok(if counters.get(Event::Fault) != faults {
            Translation::Fault
        } else if counters.get(Event::TlbHit) != hits {
            Translation::Tlb
        } else {
            Translation::Tables
        })
    }

    /// Where the byte at `addr` is, until the next poll.
    // Two callers, which programs spend their time in.
    #[inline(always)]
    fn locate(&mut self, addr: VirtAddr, access: Access) -> Result<NonNull<u8>, AccessError<S::Error>> {
        self.be_inside()?;
        match self.translate(addr, access) {
            Some(at) => {
                self.note_write(at, access);
                Ok(at)
            }
            None => self.fault(addr, access),
        }
    }

    /// Notes that the page with the byte `at` is written to: before the next poll, as its bytes would be.
    #[inline]
    fn note_write(&self, at: NonNull<u8>, access: Access) {
        let machine = self.program.seat.machine;
        if access == Access::Write
            && let Some(written) = &machine.written
        {
            written.note(machine.arena.frame_of(at));
        }
    }

    #[inline]
    fn translate(&mut self, addr: VirtAddr, access: Access) -> Option<NonNull<u8>> {
        // SAFETY: `be_inside` precedes, and no reference to the cache outlives the calls that make one.
        unsafe { mmu::translate::<F>(self.program.seat.machine, self.owner, addr, access) }
    }

    #[cold]
    fn fault(&mut self, addr: VirtAddr, access: Access) -> Result<NonNull<u8>, AccessError<S::Error>> {
        for _ in 0..STUCK_AFTER {
            self.owner.leave_guest();
            self.owner.cpu().counters.add(Event::Fault);
            self.program.space.fault(addr, access).map_err(AccessError::Fault)?;
            // The thread is where it was.
            self.owner.enter_guest();
            self.be_inside()?;
            if let Some(at) = self.translate(addr, access) {
                self.note_write(at, access);
                return Ok(at);
            }
        }
        Err(AccessError::Stuck { addr, access })
    }

    /// Enters guest mode on the program's own tables, and serves shootdowns.
    // A part of each access. The steps that are rarely due are calls.
    #[inline(always)]
    fn be_inside(&mut self) -> Result<(), AccessError<S::Error>> {
        if !self.owner.is_inside() {
            self.enter();
        }
        if self.owner.activations() != self.program.activation.get() {
            self.activate()?;
        }
        self.owner.serve_mail();
        Ok(())
    }

    #[cold]
    fn enter(&mut self) {
        let cpus = &self.program.seat.machine.cpus;
        assert!(
            current::is_current(cpus, self.owner.cpu()) && !self.owner.is_pinned(),
            "a program runs below another vCPU of its machine, or in a pinned section"
        );
        self.owner.enter_guest();
    }

    /// Makes the space current on the vCPU. Whatever the vCPU had before may be gone by now, so nothing is
    /// accessed unless it has the space's tables afterwards.
    fn activate(&mut self) -> Result<(), AccessError<S::Error>> {
        let Program { seat, space, activation, .. } = self.program;
        // An earlier program of the space was the last one here.
        let is_own = self.owner.root() == Some(space.root()) && space.machine() == seat.machine.id;
        if is_own && space.is_current(self.owner.cpu().id) {
            activation.set(self.owner.activations());
            return Ok(());
        }
        self.owner.leave_guest();
        if space.machine() != seat.machine.id {
            return Err(AccessError::NotCurrent);
        }
        space.activate();
        if self.owner.root() != Some(space.root()) {
            return Err(AccessError::NotCurrent);
        }
        activation.set(self.owner.activations());
        self.owner.enter_guest();
        Ok(())
    }
}

impl<S, F: PagingFormat> fmt::Debug for Guest<'_, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("cpu", &self.owner.cpu().id).finish_non_exhaustive()
    }
}

/// A buffer's index ranges, split where its addresses cross from page to page.
struct PageParts {
    done: usize,
    len: usize,
    /// Bytes to the end of the page that `done` is in.
    left_in_page: usize,
}

impl PageParts {
    fn new(addr: VirtAddr, len: usize) -> Self {
        Self { done: 0, len, left_in_page: (PAGE_SIZE - addr.page_offset()) as usize }
    }
}

impl Iterator for PageParts {
    type Item = core::ops::Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = self.done..self.len.min(self.done + self.left_in_page);
        self.done = part.end;
        self.left_in_page = PAGE_SIZE as usize;
        (!part.is_empty()).then_some(part)
    }
}
