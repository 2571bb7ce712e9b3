//! What a thread that needs memory holds while it looks for some, and when a program is killed for it.

use crate::common::*;
use crate::short_pins::machine::{Machine, TEST, exhaust, frames, let_time_fly, put_all, run_on};
use quire_arch::PagingFormat;
use quire_frame::{AllocRequest, Kind, PcpTechnique};
use quire_host::swap::HostRam;
use quire_reclaim::Policy;
use quire_space::{Need, OomOutcome, Reclaim, Space, Spaces, SpacesConfig};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// There is nothing to reclaim but the only page, whose lock it looks at, and others free something all the
/// time. When a program is to be killed it gives back what the test has taken.
#[derive(Default)]
struct Killer {
    taken: Mutex<Vec<Pfn>>,
    /// Looks for memory during which the page was locked, and those during which it was not.
    locked: AtomicU64,
    unlocked: AtomicU64,
    /// Whether it was locked when a program was to be killed.
    at_the_kill: Mutex<Option<bool>>,
}

fn is_locked(spaces: &Spaces<Machine>) -> bool {
    let mut locked = false;
    let frames = spaces.frames();
    frames.audit().for_each_frame(|pfn, frame| {
        locked |= frame.kind() == Kind::Anonymous && frames.folios().try_lock_folio(pfn).is_none();
    });
    locked
}

impl Reclaim<Machine> for Killer {
    fn make_room(&self, spaces: &Spaces<Machine>, _: Need) -> u64 {
        let looks = if is_locked(spaces) { &self.locked } else { &self.unlocked };
        looks.fetch_add(1, Ordering::Relaxed);
        spaces.note_reclaimed(1);
        0
    }

    fn out_of_memory(&self, spaces: &Spaces<Machine>, _: Need) -> OomOutcome {
        *self.at_the_kill.lock().unwrap() = Some(is_locked(spaces));
        let frames = spaces.frames();
        let pin = frames.platform().pin();
        for pfn in self.taken.lock().unwrap().drain(..) {
            frames.free(&pin, pfn, Order::ZERO).unwrap();
        }
        OomOutcome::Freed
    }

    fn page_out(&self, spaces: &Spaces<Machine>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        Policy.page_out(spaces, folios)
    }

    fn throttle(&self, _: &Spaces<Machine>, _: MemcgId) {}
}

/// Hazard: a fault lets the folio go that it swapped in, and reclaims it while it waits for others. It swaps
/// it in again for ever: no program is killed for the copy that it needs. Or it keeps it locked while a
/// program is killed, which may be waiting for it.
#[test]
fn a_folio_is_let_go_when_a_program_is_killed_and_not_before() {
    type Paging = <Machine as Platform>::Paging;
    run_on(0);
    let_time_fly();
    let killer: &'static Killer = Box::leak(Box::default());
    let frames = frames(&[(0, 2048)], 1, PcpTechnique::All);
    let swap = Swap::new(Memcgs::new(frames).unwrap(), SwapTechnique::default());
    let config =
        SpacesConfig { overcommit: Overcommit::Always, oom: OomAction::Kill, ..SpacesConfig::default() };
    let spaces = Spaces::new(swap, config, killer).unwrap();
    quire_space::swapon(&spaces, HostRam::new(64).unwrap(), SwapOnOptions::default()).unwrap();
    let parent = Space::create(&spaces, Layout::standard(Paging::USER_END), Limits::default()).unwrap();
    let request = MapRequest::anonymous(PAGE, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = parent.mmap(&request).unwrap();
    parent.fault(area, Access::Write).unwrap();
    parent.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(parent.figures().swapped, PAGE);
    let child = parent.fork().unwrap();
    // One frame is left for the page, and none for the copy.
    let mut taken = exhaust(spaces.frames(), AllocRequest::new(Order::ZERO, TEST));
    let last = taken.pop().unwrap();
    spaces.frames().free(&spaces.platform().pin(), last, Order::ZERO).unwrap();
    *killer.taken.lock().unwrap() = taken;
    parent.fault(area, Access::Write).unwrap();
    assert_eq!(*killer.at_the_kill.lock().unwrap(), Some(false), "the page is locked");
    let looks = [&killer.locked, &killer.unlocked].map(|looks| looks.load(Ordering::Relaxed));
    // Others free something all the time: it looks whether there is room more often than it reclaims itself.
    assert!((2..=32).contains(&looks[0]) && looks[1] == 0, "{looks:?}");
    assert_eq!((parent.figures().resident_anonymous, child.figures().swapped), (PAGE, PAGE));
}

/// Has nothing to free. The program that looks for memory is killed by another one.
#[derive(Default)]
struct Killed {
    space: OnceLock<&'static Space<'static, Machine>>,
    looks: AtomicU64,
    kills: AtomicU64,
}

impl Reclaim<Machine> for Killed {
    fn make_room(&self, _: &Spaces<Machine>, _: Need) -> u64 {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.space.get().unwrap().oom().kill();
        0
    }

    fn out_of_memory(&self, _: &Spaces<Machine>, _: Need) -> OomOutcome {
        self.kills.fetch_add(1, Ordering::Relaxed);
        OomOutcome::Nothing
    }

    fn page_out(&self, spaces: &Spaces<Machine>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        Policy.page_out(spaces, folios)
    }

    fn throttle(&self, _: &Spaces<Machine>, _: MemcgId) {}
}

/// Hazard: a program that is killed looks for memory for a second and more, as long as others reclaim, and
/// what it has is not free until then. Or another one is killed for it.
#[test]
fn a_killed_program_looks_for_no_memory_beside_others() {
    type Paging = <Machine as Platform>::Paging;
    for others in [true, false] {
        run_on(0);
        let_time_fly();
        let killed: &'static Killed = Box::leak(Box::default());
        let frames = frames(&[(0, 2048)], 1, PcpTechnique::All);
        let swap = Swap::new(Memcgs::new(frames).unwrap(), SwapTechnique::default());
        let config =
            SpacesConfig { overcommit: Overcommit::Always, oom: OomAction::Kill, ..SpacesConfig::default() };
        let spaces: &'static _ = Box::leak(Box::new(Spaces::new(swap, config, killed).unwrap()));
        let space: &'static _ = Box::leak(Box::new(
            Space::create(spaces, Layout::standard(Paging::USER_END), Limits::default()).unwrap(),
        ));
        let request = MapRequest::anonymous(PAGE, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
        let area = space.mmap(&request).unwrap();
        assert!(killed.space.set(space).is_ok());
        exhaust(spaces.frames(), AllocRequest::new(Order::ZERO, TEST));
        let _others = others.then(|| spaces.begin_reclaim());
        assert_eq!(space.fault(area, Access::Write), Err(FaultError::Killed));
        let counts = [&killed.looks, &killed.kills].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [1, 0], "looks for memory, and for programs to kill");
    }
}

/// Has nothing to free. Each time it is asked a program that was killed exits, and others take what that
/// frees. When one is to be killed here the test's frames are free again.
#[derive(Default)]
struct Exits {
    taken: Mutex<Vec<Pfn>>,
    killed: Mutex<Vec<Space<'static, Machine>>>,
    /// How many have not exited when one is to be killed.
    left: OnceLock<usize>,
}

impl Exits {
    fn take_all(&self, spaces: &Spaces<Machine>) {
        spaces.frames().limbo().reap_all_in_portions();
        self.taken.lock().unwrap().extend(exhaust(spaces.frames(), AllocRequest::new(Order::ZERO, TEST)));
    }
}

impl Reclaim<Machine> for Exits {
    fn make_room(&self, spaces: &Spaces<Machine>, _: Need) -> u64 {
        drop(self.killed.lock().unwrap().pop());
        self.take_all(spaces);
        spaces.note_reclaimed(1);
        0
    }

    fn out_of_memory(&self, spaces: &Spaces<Machine>, _: Need) -> OomOutcome {
        let _ = self.left.set(self.killed.lock().unwrap().len());
        put_all(spaces.frames(), self.taken.lock().unwrap().drain(..), Order::ZERO);
        OomOutcome::Freed
    }

    fn page_out(&self, spaces: &Spaces<Machine>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        Policy.page_out(spaces, folios)
    }

    fn throttle(&self, _: &Spaces<Machine>, _: MemcgId) {}
}

/// Hazard: programs that others have killed exit beside a fault without memory. It takes each for a reason to
/// begin anew, and gets no page, nor is a program killed for it, for as long as there are such.
#[test]
fn exits_of_killed_programs_do_not_keep_a_fault_from_its_end() {
    const PROGRAMS: usize = 400;
    type Paging = <Machine as Platform>::Paging;
    run_on(0);
    let_time_fly();
    let exits: &'static Exits = Box::leak(Box::default());
    let frames = frames(&[(0, 1 << 13)], 1, PcpTechnique::All);
    let swap = Swap::new(Memcgs::new(frames).unwrap(), SwapTechnique::default());
    let config =
        SpacesConfig { overcommit: Overcommit::Always, oom: OomAction::Kill, ..SpacesConfig::default() };
    let spaces: &'static _ = Box::leak(Box::new(Spaces::new(swap, config, exits).unwrap()));
    let create = || Space::create(spaces, Layout::standard(Paging::USER_END), Limits::default()).unwrap();
    let space = create();
    let request = MapRequest::anonymous(PAGE, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = space.mmap(&request).unwrap();
    for _ in 0..PROGRAMS {
        let killed = create();
        killed.oom().kill();
        exits.killed.lock().unwrap().push(killed);
    }
    exits.take_all(spaces);
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    let left = exits.left.get().copied();
    assert!(left.is_some_and(|left| left > 0), "{left:?} of them are left");
}
