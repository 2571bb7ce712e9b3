//! How often a thread that needs memory looks for it beside others, and what it has let go by then.

use crate::common::*;
use crate::short_pins::machine::{Machine, TEST, exhaust, frames, let_time_fly, put_all, run_on};
use quire_arch::PagingFormat;
use quire_frame::{AllocRequest, Kind, PcpTechnique};
use quire_host::swap::HostRam;
use quire_reclaim::Policy;
use quire_space::{Need, OomOutcome, Reclaim, Space, Spaces, SpacesConfig};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// What is freed at the nth look for memory.
type Look = Box<dyn Fn(u64) -> u64 + Send + Sync>;

/// Frees what a test says. When a program is to be killed what it has taken is free again.
#[derive(Default)]
pub(crate) struct Looks {
    pub(crate) look: OnceLock<Look>,
    looks: AtomicU64,
    kills: AtomicU64,
    taken: Mutex<Vec<Pfn>>,
}

impl Looks {
    pub(crate) fn take_all(&self, spaces: &Spaces<Machine>) {
        spaces.frames().limbo().reap_all_in_portions();
        self.taken.lock().unwrap().extend(exhaust(spaces.frames(), AllocRequest::new(Order::ZERO, TEST)));
    }

    pub(crate) fn give_back(&self, spaces: &Spaces<Machine>) -> u64 {
        let taken = core::mem::take(&mut *self.taken.lock().unwrap());
        let frames = taken.len() as u64;
        put_all(spaces.frames(), taken, Order::ZERO);
        frames
    }

    pub(crate) fn counts(&self) -> [u64; 2] {
        [&self.looks, &self.kills].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Reclaim<Machine> for Looks {
    fn make_room(&self, _: &Spaces<Machine>, _: Need) -> u64 {
        self.look.get().unwrap()(self.looks.fetch_add(1, Ordering::Relaxed))
    }

    fn out_of_memory(&self, spaces: &Spaces<Machine>, _: Need) -> OomOutcome {
        self.kills.fetch_add(1, Ordering::Relaxed);
        self.give_back(spaces);
        OomOutcome::Freed
    }

    fn page_out(&self, spaces: &Spaces<Machine>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        Policy.page_out(spaces, folios)
    }

    fn throttle(&self, _: &Spaces<Machine>, _: MemcgId) {}
}

pub(crate) const USER_END: VirtAddr = <Machine as Platform>::Paging::USER_END;

/// A machine without time, with so many CPUs, whose reclaim is this.
pub(crate) fn spaces_of(cpus: usize) -> (&'static Spaces<Machine>, &'static Looks) {
    run_on(0);
    let_time_fly();
    let looks: &'static Looks = Box::leak(Box::default());
    let frames = frames(&[(0, 2048)], cpus, PcpTechnique::All);
    let swap = Swap::new(Memcgs::new(frames).unwrap(), SwapTechnique::default());
    let config =
        SpacesConfig { overcommit: Overcommit::Always, oom: OomAction::Kill, ..SpacesConfig::default() };
    let spaces: &'static Spaces<Machine> = Box::leak(Box::new(Spaces::new(swap, config, looks).unwrap()));
    quire_space::swapon(spaces, HostRam::new(64).unwrap(), SwapOnOptions::default()).unwrap();
    (spaces, looks)
}

fn spaces() -> (&'static Spaces<Machine>, &'static Looks) {
    spaces_of(1)
}

/// A program with a page to touch, and all tables for it.
fn program(spaces: &'static Spaces<Machine>) -> (Space<'static, Machine>, VirtAddr) {
    let space = Space::create(spaces, Layout::standard(USER_END), Limits::default()).unwrap();
    let request = MapRequest::anonymous(2 * PAGE, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = space.mmap(&request).unwrap();
    space.fault(page(area, 1), Access::Write).unwrap();
    (space, area)
}

/// So many programs that have been killed, and have not exited.
fn killed(spaces: &'static Spaces<Machine>, programs: usize) -> Mutex<Vec<Space<'static, Machine>>> {
    let killed = || {
        let space = Space::create(spaces, Layout::standard(USER_END), Limits::default()).unwrap();
        space.oom().kill();
        space
    };
    Mutex::new((0..programs).map(|_| killed()).collect())
}

/// Hazard: a program that was killed exits beside a thread that has just found nothing to free. What it
/// leaves is not free yet, but can be freed now. The thread has another program killed.
#[test]
fn what_an_exit_leaves_is_reclaimed_before_a_program_is_killed() {
    let (spaces, looks) = spaces();
    let (space, area) = program(spaces);
    let killed = killed(spaces, 1);
    let look = move |nth| {
        if nth > 0 {
            return looks.give_back(spaces);
        }
        drop(killed.lock().unwrap().pop());
        looks.take_all(spaces);
        0
    };
    assert!(looks.look.set(Box::new(look)).is_ok());
    looks.take_all(spaces);
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    assert_eq!(looks.counts(), [2, 0], "looks for memory, and for programs to kill");
}

/// Hazard: others are under way as long as a thread looks, and a program that was killed exits when it has
/// reclaimed for the last time.
#[test]
fn what_an_exit_leaves_at_the_end_is_reclaimed_too() {
    const LAST: u64 = 9;
    let (spaces, looks) = spaces();
    let (space, area) = program(spaces);
    let killed = killed(spaces, 1);
    let look = move |nth| {
        if nth > LAST {
            return looks.give_back(spaces);
        }
        if nth == LAST {
            drop(killed.lock().unwrap().pop());
            looks.take_all(spaces);
        }
        0
    };
    assert!(looks.look.set(Box::new(look)).is_ok());
    looks.take_all(spaces);
    let _others = spaces.begin_reclaim();
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    assert_eq!(looks.counts(), [LAST + 2, 0], "looks for memory, and for programs to kill");
}

/// Hazard: frames that others have freed wait for readers that are gone by now. A thread that needs one does
/// not look there, and waits for those that reclaim beside it.
#[test]
fn frames_that_wait_for_readers_are_room() {
    let (spaces, looks) = spaces();
    let (space, area) = program(spaces);
    let look = move |nth| {
        if nth == 0 {
            let pin = spaces.platform().pin();
            let _reader = spaces.frames().epoch().enter(&pin);
            for pfn in looks.taken.lock().unwrap().drain(..8) {
                spaces.frames().limbo().retire(&pin, pfn, Order::ZERO).unwrap();
            }
        }
        0
    };
    assert!(looks.look.set(Box::new(look)).is_ok());
    looks.take_all(spaces);
    let _others = spaces.begin_reclaim();
    let began = spaces.platform().now();
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    let took = spaces.platform().now() - began;
    assert!(took < 50_000_000, "{took} ns");
    assert_eq!(looks.counts(), [1, 0], "looks for memory, and for programs to kill");
}

/// Hazard: a fault keeps the lock of the folio that it has swapped in while one program after another is
/// killed elsewhere: threads that want the folio wait as long as memory is short. Or it lets it go each time,
/// and there is no end of that.
#[test]
fn a_folio_is_let_go_for_some_programs_that_others_kill() {
    const PROGRAMS: u64 = 20;
    let (spaces, looks) = spaces();
    let (parent, area) = program(spaces);
    let parent: &'static Space<'static, Machine> = Box::leak(Box::new(parent));
    parent.fault(area, Access::Write).unwrap();
    parent.madvise(area, PAGE, Advice::PageOut).unwrap();
    let _child = parent.fork().unwrap();
    let killed = killed(spaces, PROGRAMS as usize);
    let is_locked = || {
        let (mut locked, frames) = (false, spaces.frames());
        frames.audit().for_each_frame(|pfn, frame| {
            locked |= frame.kind() == Kind::Anonymous && frames.folios().try_lock_folio(pfn).is_none();
        });
        locked
    };
    // How often it was locked before a program exits, and after that.
    let locked: &'static [AtomicU64; 2] = Box::leak(Box::default());
    let look = move |nth| {
        let now = is_locked();
        locked[(nth % 2) as usize].fetch_add(u64::from(now), Ordering::Relaxed);
        if nth % 2 > 0 {
            if nth / 2 + 1 == PROGRAMS {
                return looks.give_back(spaces);
            }
            // It is all that can be freed, and has to be swapped in again.
            parent.madvise(area, PAGE, Advice::PageOut).unwrap();
            return 1;
        }
        drop(killed.lock().unwrap().pop());
        looks.take_all(spaces);
        0
    };
    assert!(looks.look.set(Box::new(look)).is_ok());
    // One frame is left for the page, and none for the copy.
    looks.take_all(spaces);
    let last = looks.taken.lock().unwrap().pop();
    put_all(spaces.frames(), last, Order::ZERO);
    assert_eq!(parent.fault(area, Access::Write), Ok(()));
    assert_eq!(looks.counts(), [2 * PROGRAMS, 0]);
    assert_eq!(locked.each_ref().map(|count| count.load(Ordering::Relaxed)), [PROGRAMS, PROGRAMS - 16]);
}

/// Hazard: others put back what can be freed now, and are done. A thread that has reclaimed once beside them
/// sleeps for as long as if they were still at it.
#[test]
fn what_others_put_back_is_reclaimed_soon() {
    const LOOKS: usize = 10;
    let (spaces, looks) = spaces();
    let (space, area) = program(spaces);
    let times: &'static Mutex<Vec<u64>> = Box::leak(Box::default());
    let look = move |_| {
        times.lock().unwrap().push(spaces.platform().now());
        // Others have freed something meanwhile, and have taken it.
        spaces.note_reclaimed(1);
        0
    };
    assert!(looks.look.set(Box::new(look)).is_ok());
    looks.take_all(spaces);
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    let times = times.lock().unwrap();
    let longest = times.windows(2).take(LOOKS).map(|pair| pair[1] - pair[0]).max();
    assert!(longest.is_some_and(|ns| ns < 100_000_000), "{times:?}");
    assert!(times.len() <= 32 && looks.counts()[1] == 1, "{times:?}");
}
