//! What a program that pages out its own pages has off their lists, beside one that needs memory.

use crate::common::*;
use crate::short_pins::machine::{Machine, TEST, exhaust, frames, let_time_fly, put_all, run_on};
use quire_arch::PagingFormat;
use quire_frame::{AllocRequest, PcpTechnique};
use quire_host::swap::HostRam;
use quire_reclaim::Policy;
use quire_space::{Need, OomOutcome, Reclaim, Space, Spaces, SpacesConfig};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// Another program wants a page when some are just about to be paged out. There is nothing to free for it,
/// but at the second look what the test has taken.
#[derive(Default)]
struct Wanting {
    wants: OnceLock<Box<dyn Fn() + Send + Sync>>,
    taken: Mutex<Vec<Pfn>>,
    looks: AtomicU64,
    kills: AtomicBool,
}

impl Wanting {
    fn free_taken(&self, spaces: &Spaces<Machine>) {
        put_all(spaces.frames(), self.taken.lock().unwrap().drain(..), Order::ZERO);
    }
}

impl Reclaim<Machine> for Wanting {
    fn make_room(&self, spaces: &Spaces<Machine>, _: Need) -> u64 {
        if self.looks.fetch_add(1, Ordering::Relaxed) > 0 {
            self.free_taken(spaces);
        }
        0
    }

    fn out_of_memory(&self, spaces: &Spaces<Machine>, _: Need) -> OomOutcome {
        self.kills.store(true, Ordering::Relaxed);
        self.free_taken(spaces);
        OomOutcome::Freed
    }

    fn page_out(&self, spaces: &Spaces<Machine>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        let isolated: Vec<_> = folios.collect();
        self.wants.get().unwrap()();
        Policy.page_out(spaces, &mut isolated.into_iter())
    }

    fn throttle(&self, _: &Spaces<Machine>, _: MemcgId) {}
}

const USER_END: VirtAddr = <Machine as Platform>::Paging::USER_END;

/// A machine without time whose reclaim is this.
fn spaces(policy: HugePolicy) -> (&'static Spaces<Machine>, &'static Wanting) {
    run_on(0);
    let_time_fly();
    let wanting: &'static Wanting = Box::leak(Box::default());
    let frames = frames(&[(0, 2048)], 1, PcpTechnique::All);
    let swap = Swap::new(Memcgs::new(frames).unwrap(), SwapTechnique::default());
    let config = SpacesConfig {
        overcommit: Overcommit::Always,
        oom: OomAction::Kill,
        huge: HugeConfig { policy, ..HugeConfig::default() },
        ..SpacesConfig::default()
    };
    let spaces: &'static Spaces<Machine> = Box::leak(Box::new(Spaces::new(swap, config, wanting).unwrap()));
    quire_space::swapon(spaces, HostRam::new(64).unwrap(), SwapOnOptions::default()).unwrap();
    (spaces, wanting)
}

/// Hazard: pages that a program pages out are off their lists before the thread says that it reclaims.
/// Another one finds nothing, and a program is killed beside memory that comes at once.
#[test]
fn a_program_is_not_killed_beside_pages_that_another_is_about_to_page_out() {
    const PAGES: u64 = 8;
    let (spaces, wanting) = spaces(HugePolicy::default());
    let request = MapRequest::anonymous(PAGES * PAGE, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let [space, other] = [(); 2].map(|()| {
        let space = Space::create(spaces, Layout::standard(USER_END), Limits::default()).unwrap();
        space.mmap(&request).unwrap();
        space.fault(VirtAddr(1 << 30), Access::Write).unwrap();
        space
    });
    let other: &'static Space<'static, Machine> = Box::leak(Box::new(other));
    *wanting.taken.lock().unwrap() = exhaust(spaces.frames(), AllocRequest::new(Order::ZERO, TEST));
    let wants = || assert_eq!(other.fault(page(VirtAddr(1 << 30), 1), Access::Write), Ok(()));
    assert!(wanting.wants.set(Box::new(wants)).is_ok());
    space.madvise(VirtAddr(1 << 30), PAGES * PAGE, Advice::PageOut).unwrap();
    assert!(!wanting.kills.load(Ordering::Relaxed), "a program would have been killed");
    assert_eq!((space.figures().swapped, other.figures().resident_anonymous), (PAGE, 2 * PAGE));
}

/// Hazard: a thread has folios off their lists while it waits for the lock of one that is to be split, and
/// the holder of that lock waits for those that reclaim.
#[test]
fn what_was_collected_is_paged_out_before_a_folio_is_split() {
    const FOLIO: u64 = 16;
    let order = Order::new(4).unwrap();
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Never);
    let (spaces, wanting) = spaces(policy.with_sizes(orders(&[4]), SizeEnabled::Always));
    let space = Space::create(spaces, Layout::standard(USER_END), Limits::default()).unwrap();
    let request = MapRequest::anonymous(2 * FOLIO * PAGE, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = space.mmap(&request).unwrap();
    let heads = [area, page(area, FOLIO)].map(|at| {
        space.fault(at, Access::Write).unwrap();
        space.pin_page_fast(at, Access::Read).unwrap().pfn()
    });
    let order_of = move |nth: usize| spaces.frames().folio(heads[nth]).order();
    assert_eq!([0, 1].map(order_of), [order; 2]);
    let sent: &'static Mutex<Vec<Order>> = Box::leak(Box::default());
    assert!(wanting.wants.set(Box::new(move || sent.lock().unwrap().push(order_of(1)))).is_ok());
    // All of the first folio, and a part of the second.
    space.madvise(area, (FOLIO + 4) * PAGE, Advice::PageOut).unwrap();
    assert_eq!(*sent.lock().unwrap(), [order]);
    // There are only zeros, and the split has freed those of the other one.
    assert_eq!((order_of(1), space.figures().swapped), (Order::ZERO, FOLIO * PAGE));
}

/// Hazard: a program that was killed pages out all of its memory first, with the mmap lock that its reaper
/// needs.
#[test]
fn a_killed_program_pages_out_no_more() {
    const PAGES: u64 = 64;
    /// That many are paged out at a time.
    const BATCH: u64 = 32;
    let (spaces, wanting) = spaces(HugePolicy::default().with_enabled(HugeEnabled::Never));
    let space = Space::create(spaces, Layout::standard(USER_END), Limits::default()).unwrap();
    let space: &'static Space<'static, Machine> = Box::leak(Box::new(space));
    let request = MapRequest::anonymous(PAGES * PAGE, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = space.mmap(&request).unwrap();
    (0..PAGES).for_each(|at| space.fault(page(area, at), Access::Write).unwrap());
    assert!(wanting.wants.set(Box::new(|| _ = space.oom().kill())).is_ok());
    space.madvise(area, PAGES * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, BATCH * PAGE);
}
