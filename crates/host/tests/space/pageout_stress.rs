//! Reads without locks, beside random calls in the window between page-out's unmapping and its flush: no read
//! is stale.
//!
//! CPU 0 only reads. CPU 1 discards lazily freed pages and pages others out, and makes calls before it
//! flushes. For each page a word says what a read must return; while a call changes that, the word says so.
//! `QUIRE_READS` is the number of reads: by default a few seconds of them.

use crate::common::*;
use quire_frame::FolioGuard;
use quire_pageout::{UnmapBatch, Unmapped, unmap_to_discard, unmap_to_swap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Pages on both sides of a border of every level of tables, and where they are moved meanwhile.
const PAGES: u64 = 16;
const BASE: VirtAddr = VirtAddr((1 << 39) - 8 * PAGE);
const AWAY: VirtAddr = VirtAddr((1 << 40) - 8 * PAGE + MIB2);
const SEED: u64 = 39;
/// Reads of one CPU between two steps of the other.
const STEP: u64 = 32;

/// What a page is.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Page {
    /// `None` if it is not mapped.
    protection: Option<Protection>,
    /// Its first word.
    word: u64,
    /// Lazily freed: zeros are right too, and once they are seen nothing else is.
    lazy: bool,
}

const HOLE: Page = Page { protection: None, word: 0, lazy: false };
const FRESH: Page = Page { protection: Some(RW), word: 0, lazy: false };

impl Page {
    fn expects(self) -> AccessResult<u64> {
        match self.protection {
            None => Err(NOT_MAPPED),
            Some(NONE) => Err(DENIED),
            Some(_) => Ok(self.word),
        }
    }

    /// In the low half of a word; words of pages are small.
    fn pack(self) -> u64 {
        let protection = match self.protection {
            None => 0,
            Some(NONE) => 1,
            Some(READ) => 2,
            Some(_) => 3,
        };
        self.word << 3 | protection << 1 | u64::from(self.lazy)
    }

    fn unpack(packed: u64) -> Self {
        let protection = [None, Some(NONE), Some(READ), Some(RW)][(packed >> 1 & 3) as usize];
        Self { protection, word: packed >> 3, lazy: packed & 1 != 0 }
    }
}

/// What both CPUs know: each page with a number that grows with each change, zero while it changes.
struct Shared {
    pages: [AtomicU64; PAGES as usize],
    reads: AtomicU64,
    /// How far the reads may come before the next step of CPU 1.
    allowed: AtomicU64,
    done: AtomicBool,
}

/// A page that was unmapped and is not flushed.
struct Out<'m> {
    head: Pfn,
    guard: FolioGuard<'m, HostPlatform>,
    swapped: bool,
}

/// What CPU 1 does.
struct Changer<'t, 'm> {
    machine: &'m Machine,
    space: &'t HostSpace<'m>,
    cpu: &'t Vcpu,
    shared: &'t Shared,
    random: Random,
    pages: [Page; PAGES as usize],
    /// Pages that are swap entries of the window: a fault waits for the end of that.
    waits: [bool; PAGES as usize],
    changes: u64,
    word: u64,
    /// Windows, pages in them, and calls that were made for such a page.
    counts: [u64; 3],
}

fn addr_of(at: u64) -> VirtAddr {
    page(BASE, at)
}

impl<'m> Changer<'_, 'm> {
    /// Changes what `range` is by `call`. Other threads see that it is being changed until it is.
    fn change(&mut self, range: Range<u64>, new: impl Fn(Page) -> Page, call: impl FnOnce(&Self)) {
        for at in range.clone() {
            self.shared.pages[at as usize].store(0, Ordering::SeqCst);
        }
        call(self);
        for at in range {
            let page = new(self.pages[at as usize]);
            self.publish(at, page);
        }
    }

    fn publish(&mut self, at: u64, page: Page) {
        self.changes += 1;
        self.pages[at as usize] = page;
        self.shared.pages[at as usize].store(self.changes << 32 | page.pack(), Ordering::SeqCst);
    }

    /// Takes a page out as reclaim does, up to the flush.
    fn put_out(&mut self, at: u64, batch: &mut UnmapBatch<'m, HostPlatform>) -> Option<Out<'m>> {
        match self.pages[at as usize].protection {
            None | Some(NONE) => {
                self.change(at..at + 1, |_| FRESH, |this| _ = map_at(this.space, addr_of(at).0, PAGE, RW));
                self.write(at);
            }
            Some(RW) if self.random.chance(80) => self.write(at),
            Some(_) => {}
        }
        let swapped = self.random.chance(30);
        if !swapped {
            let free = |page: Page| Page { lazy: true, ..page };
            self.change(at..at + 1, free, |this| {
                this.space.madvise(addr_of(at), PAGE, Advice::Free).expect("it is mapped");
            });
            self.let_others_read();
        }
        let spaces = self.machine.memory().spaces();
        let head = self.space.pin_page_fast(addr_of(at), Access::Read)?.pfn();
        let frame = spaces.frames().known(head);
        if frame.kind() != quire_frame::Kind::Anonymous || !frame.try_get() {
            return None;
        }
        let guard = spaces.frames().folios().try_lock_folio(head);
        let unmapped = guard.is_some()
            && match swapped {
                true => {
                    spaces.swap().allocator().add_folio(head, 0).is_ok()
                        && unmap_to_swap(batch, head) == Unmapped::All
                }
                false => unmap_to_discard(batch, head) == Unmapped::All,
            };
        let Some(guard) = guard.filter(|_| unmapped) else {
            batch.flush();
            spaces.swap().cache().leave_if_unnamed(head);
            spaces.memcgs().folios().release_folio(head);
            return None;
        };
        self.waits[at as usize] = swapped;
        self.counts[1] += 1;
        Some(Out { head, guard, swapped })
    }

    /// Lets the other CPU come to some reads, if it is not waiting for the window to close.
    fn let_others_read(&self) {
        let allowed = self.shared.allowed.fetch_add(STEP, Ordering::Relaxed) + STEP;
        for attempt in 0..200 {
            if self.shared.reads.load(Ordering::Relaxed) >= allowed {
                break;
            }
            HostPlatform::<X86_64Level4>::relax(attempt);
        }
    }

    /// Unmaps pages, makes calls, and flushes.
    fn window(&mut self) {
        let spaces = self.machine.memory().spaces();
        let mut batch = UnmapBatch::new(spaces.rmap());
        let mut out = Vec::new();
        let first = self.random.below(PAGES);
        let end = (first + 1 + self.random.below(3)).min(PAGES);
        for at in first..end {
            out.extend(self.put_out(at, &mut batch));
        }
        self.counts[0] += 1;
        for _ in 0..1 + self.random.below(3) {
            let near = self.random.chance(70) && !out.is_empty();
            let (from, to) = if near { (first, end) } else { (0, PAGES) };
            let start = from + self.random.below(to - from);
            let count = 1 + self.random.below((PAGES - start).min(4));
            self.counts[2] += u64::from(near);
            self.call(start..start + count);
            self.let_others_read();
        }
        batch.flush();
        self.waits = [false; PAGES as usize];
        for Out { head, guard, swapped } in out {
            drop(guard);
            if swapped {
                spaces.swap().cache().leave_if_unnamed(head);
            }
            spaces.memcgs().folios().release_folio(head);
        }
    }

    /// A random call on `range`.
    fn call(&mut self, range: Range<u64>) {
        let (addr, len) = (addr_of(range.start), (range.end - range.start) * PAGE);
        let (first, last) = (range.start as usize, range.end as usize);
        let mapped = self.pages[first..last].iter().all(|page| page.protection.is_some());
        match self.random.below(if mapped { 9 } else { 2 }) {
            0 => {
                self.change(range, |_| HOLE, |this| this.space.munmap(addr, len).expect("memory"));
                self.waits[first..last].fill(false);
            }
            1 => {
                self.change(range, |_| FRESH, |this| _ = map_at(this.space, addr.0, len, RW));
                self.waits[first..last].fill(false);
            }
            2 => {
                let dropped = |page| Page { word: 0, lazy: false, ..page };
                self.change(range, dropped, |this| {
                    this.space.madvise(addr, len, Advice::DontNeed).expect("mapped");
                });
                self.waits[first..last].fill(false);
            }
            3 => {
                let protection = self.random.pick(&[NONE, READ, RW]);
                self.change(
                    range,
                    |page| Page { protection: Some(protection), ..page },
                    |this| {
                        this.space.mprotect(addr, len, protection, false).expect("memory");
                    },
                );
            }
            4 | 5 => self.write(range.start),
            6 => self.read(range.start),
            7 => self.move_away_and_back(range),
            _ => self.fork(range.start),
        }
    }

    fn write(&mut self, at: u64) {
        if self.pages[at as usize].protection == Some(RW) && !self.waits[at as usize] {
            self.word += 1;
            let word = (self.word << 4 | at) & 0x1fff_ffff;
            self.change(
                at..at + 1,
                |page| Page { word, lazy: false, ..page },
                |this| {
                    write(this.cpu, this.space, addr_of(at), word);
                },
            );
        }
    }

    /// Reads a page; zeros stay where they have been seen.
    fn read(&mut self, at: u64) {
        let page = self.pages[at as usize];
        if !self.waits[at as usize] {
            let seen = self.cpu.program(self.space).read_u64(addr_of(at));
            self.seen(at, page, seen);
        }
    }

    fn seen(&mut self, at: u64, page: Page, seen: AccessResult<u64>) {
        assert!(seen == page.expects() || seen == Ok(0) && page.lazy, "page {at}: {seen:?}, {page:?}");
        if seen == Ok(0) && page.word != 0 {
            self.publish(at, Page { word: 0, lazy: false, ..page });
        }
    }

    fn move_away_and_back(&mut self, range: Range<u64>) {
        let (addr, len) = (addr_of(range.start), (range.end - range.start) * PAGE);
        let (pages, there) = (self.pages, page(AWAY, range.start));
        self.change(
            range.clone(),
            |_| HOLE,
            |this| {
                this.space.mremap(addr, len, len, MOVE, there).expect("memory");
            },
        );
        self.let_others_read();
        for at in range.clone() {
            self.pages[at as usize] = pages[at as usize];
        }
        self.change(
            range,
            |page| page,
            |this| {
                this.space.mremap(there, len, len, MOVE, addr).expect("memory");
            },
        );
    }

    /// The child has what the parent has from then on.
    fn fork(&mut self, at: u64) {
        let page = self.pages[at as usize];
        let child = self.space.fork().expect("memory");
        if !self.waits[at as usize] {
            let seen = self.cpu.program(&child).read_u64(addr_of(at));
            self.seen(at, page, seen);
        }
    }
}

/// Reads until there were `target` reads whose result is known.
fn read_all(shared: &Shared, program: &HostProgram<'_, '_>, target: u64) {
    let mut random = Random(SEED << 8);
    let (mut reads, mut zeros) = (0, [0; PAGES as usize]);
    while reads < target {
        if reads >= shared.allowed.load(Ordering::Relaxed) {
            if shared.done.load(Ordering::Relaxed) {
                return;
            }
            thread::yield_now();
            continue;
        }
        let at = random.below(PAGES);
        let word = &shared.pages[at as usize];
        let before = word.load(Ordering::SeqCst);
        let seen = program.read_u64(addr_of(at));
        if before == 0 || word.load(Ordering::SeqCst) != before {
            continue;
        }
        let page = Page::unpack(before & 0xffff_ffff);
        let zeroed = &mut zeros[at as usize];
        let discarded = page.lazy && seen == Ok(0);
        let expected = if *zeroed == before { Ok(0) } else { page.expects() };
        assert!(seen == expected || discarded, "page {at}: {seen:?}, not {expected:?} ({page:?})");
        if discarded {
            *zeroed = before;
        }
        reads += 1;
        shared.reads.store(reads, Ordering::Relaxed);
    }
}

#[test]
fn no_read_is_stale_beside_calls_page_out_and_discards() {
    let target = setting("QUIRE_READS", 300_000);
    println!("seed {SEED}, {target} reads");
    let machine = swapping(16, 2, 1024);
    let space = create_space(&machine);
    map_at(&space, BASE.0, PAGES * PAGE, RW);
    let shared = Shared {
        pages: [(); PAGES as usize].map(|()| AtomicU64::new(1 << 32 | FRESH.pack())),
        reads: AtomicU64::new(0),
        allowed: AtomicU64::new(0),
        done: AtomicBool::new(false),
    };
    // Also when the reader panics: the other CPU must end.
    struct Finish<'d>(&'d AtomicBool);
    impl Drop for Finish<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let counts = thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let cpu = machine.vcpu(1).expect("each CPU has one thread");
            let mut changer = Changer {
                machine: &machine,
                space: &space,
                cpu: &cpu,
                shared: &shared,
                random: Random(SEED),
                pages: [FRESH; PAGES as usize],
                waits: [false; PAGES as usize],
                changes: 1,
                word: 0,
                counts: [0; 3],
            };
            let _finish = Finish(&shared.done);
            while !shared.done.load(Ordering::Relaxed) {
                cpu.run(|| changer.window());
            }
            changer.counts
        });
        let cpu = machine.vcpu(0).expect("each CPU has one thread");
        let _finish = Finish(&shared.done);
        read_all(&shared, &cpu.program(&space), target);
        drop(_finish);
        changer.join().expect("no call was wrong")
    });
    println!("{} windows, {} pages out, {} calls for them", counts[0], counts[1], counts[2]);
    assert!(counts[1] > 0 && counts[2] > 0, "nothing was paged out");
    assert_audit(&machine);
}
