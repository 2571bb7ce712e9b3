//! Threads that charge, list, isolate, and let memcgs come and go at once. Seeds are printed and replay.

use crate::common::{Machine, Random, TEST, order, run_on};
use crate::support::assert_sound;
use quire_arch::{NodeId, Pfn, Platform};
use quire_frame::{AllocRequest, FrameChain, Kind};
use quire_memcg::{Begin, Limit, LruList, MemcgError, MemcgId, MemcgStat, Memcgs, Most};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

const SEEDS: [u64; 3] = [1, 0x5eed, 0xfeed_f00d];
const STEPS: u64 = 100_000;

struct Shared {
    /// Memcgs that spaces belong to, one for each worker, as the creator gives them out.
    homes: [Mutex<MemcgId>; 2],
    faults: [AtomicU64; 2],
    done: AtomicBool,
    start: Barrier,
}

/// Drops a reference to a folio, and frees it if it was the last one, as the last unmapping does.
fn put(memcgs: &Memcgs<Machine>, head: Pfn) {
    let frames = memcgs.frames();
    let pin = frames.platform().pin();
    let frame = frames.known(head);
    let order = frame.word().order();
    let id = MemcgId::from_bits(frame.as_folio().memcg());
    if !frame.put(1) {
        return;
    }
    // No CPU can take a reference any more, so it is not listed again.
    memcgs.folios().unlist_folio(&pin, head);
    frame.as_folio().set_memcg(0);
    let mut chain = FrameChain::new();
    frames.gather(&mut chain, head, order).unwrap();
    frames.free_chain(&pin, chain);
    memcgs.counters().add_stat(&pin, id, MemcgStat::Pgactivate, -(order.pages() as i64));
    memcgs.charges().uncharge(&pin, id, order.pages());
}

/// A program: it moves from memcg to memcg, and its pages stay behind.
fn program(memcgs: &Memcgs<Machine>, shared: &Shared, number: usize, seed: u64) {
    run_on(number);
    shared.start.wait();
    let frames = memcgs.frames();
    let mut random = Random(seed);
    let mut home = MemcgId::ROOT;
    let mut mine: Vec<Pfn> = Vec::new();
    for step in 0.. {
        if shared.done.load(Ordering::Relaxed) {
            break;
        }
        if step % 512 == 0 {
            memcgs.tree().release(home);
            let next = *shared.homes[number].lock().unwrap();
            home = if memcgs.tree().hold(next).is_ok() { next } else { MemcgId::ROOT };
        }
        let pin = frames.platform().pin();
        match random.below(8) {
            0..=2 if mine.len() < 200 => {
                let order = order([0, 0, 0, 2][random.below(4) as usize]);
                if memcgs.charges().try_charge(&pin, home, order.pages()).is_err() {
                    continue;
                }
                let Ok(head) = frames.allocate(&pin, AllocRequest::new(order, TEST).kind(Kind::Anonymous))
                else {
                    memcgs.charges().uncharge(&pin, home, order.pages());
                    continue;
                };
                frames.known(head).as_folio().set_memcg(home.get());
                memcgs.counters().add_stat(&pin, home, MemcgStat::Pgactivate, order.pages() as i64);
                memcgs.counters().add_stat(&pin, home, MemcgStat::Pgfault, 1);
                if !home.is_root() {
                    shared.faults[number].fetch_add(1, Ordering::Relaxed);
                }
                memcgs.folios().list_folio(&pin, head, LruList::ALL[random.below(5) as usize]);
                mine.push(head);
            }
            3..=5 if !mine.is_empty() => {
                drop(pin);
                put(memcgs, mine.swap_remove(random.below(mine.len() as u64) as usize));
            }
            6 if !mine.is_empty() => {
                let head = mine[random.below(mine.len() as u64) as usize];
                match random.below(3) {
                    0 => memcgs.folios().activate(&pin, head),
                    1 => memcgs.folios().deactivate(&pin, head),
                    _ => memcgs.folios().move_to_back(&pin, head),
                };
            }
            7 => memcgs.folios().take_in((random.below(4) == 0).then(|| pin.cpu())),
            _ => {}
        }
    }
    memcgs.tree().release(home);
    mine.into_iter().for_each(|head| put(memcgs, head));
}

/// Takes folios off lists and brings them back, and lets memcgs come and go.
fn reclaim(memcgs: &Memcgs<Machine>, shared: &Shared, seed: u64) {
    run_on(2);
    shared.start.wait();
    let frames = memcgs.frames();
    let mut random = Random(seed);
    let mut made: Vec<MemcgId> = Vec::new();
    let mut taken: Vec<Pfn> = Vec::new();
    for step in 0..STEPS {
        let id = memcgs.tree().visit_round(MemcgId::ROOT).next().unwrap();
        let node = NodeId::new(random.below(2) as usize).unwrap();
        let list = LruList::ALL[random.below(5) as usize];
        {
            let pin = frames.platform().pin();
            let begin = if step % 2 == 0 { Begin::Oldest } else { Begin::WhereLeft };
            memcgs.folios().isolate(
                &pin,
                (id, node, list),
                (begin, Most::folios(8)),
                |pfn| !pfn.0.is_multiple_of(4),
                &mut taken,
            );
            let back = |&head: &Pfn| (head, list, head.0.is_multiple_of(2));
            memcgs.folios().put_back_all(&pin, taken.iter().map(back));
        }
        taken.drain(..).for_each(|head| put(memcgs, head));
        if step % 64 == 0 {
            let parent = if made.is_empty() || random.below(2) == 0 {
                MemcgId::ROOT
            } else {
                made[random.below(made.len() as u64) as usize]
            };
            let id = memcgs.lifecycle().create(parent, &format!("g{step}")).unwrap();
            let _ = memcgs.files().set(id, Limit::Max, Some((100 + random.below(300)) << 12)).unwrap();
            let _ = memcgs.files().set(id, Limit::Low, Some(random.below(100) << 12)).unwrap();
            made.push(id);
            *shared.homes[random.below(2) as usize].lock().unwrap() = id;
        }
        if step % 64 == 32 && made.len() > 6 {
            let at = random.below(made.len() as u64) as usize;
            match memcgs.lifecycle().remove(made[at]) {
                Ok(()) => drop(made.swap_remove(at)),
                Err(error) => assert_eq!(error, MemcgError::Busy),
            }
        }
        if step % 128 == 0 {
            memcgs.counters().stats(MemcgId::ROOT);
            memcgs.tree().protection(MemcgId::ROOT, made[0]);
            memcgs.charges().drain_stocks(&frames.platform().pin());
        }
    }
    shared.done.store(true, Ordering::Relaxed);
}

fn stress(seed: u64) {
    println!("seed {seed:#x}");
    let machine = Machine::new(&[(0, 2048), (2048, 4096)], 3).nodes(2);
    let memcgs = Memcgs::new(crate::common::frames_of(machine, quire_frame::PcpTechnique::All)).unwrap();
    let home = || Mutex::new(MemcgId::ROOT);
    let shared = Shared {
        homes: [home(), home()],
        faults: [AtomicU64::new(0), AtomicU64::new(0)],
        done: AtomicBool::new(false),
        start: Barrier::new(3),
    };
    thread::scope(|scope| {
        for number in 0..2 {
            let (memcgs, shared) = (&memcgs, &shared);
            scope.spawn(move || program(memcgs, shared, number, seed + number as u64));
        }
        scope.spawn(|| reclaim(&memcgs, &shared, seed ^ 0xff));
    });
    run_on(0);
    assert_sound(&memcgs);
    let pin = memcgs.frames().platform().pin();
    memcgs.charges().drain_stocks(&pin);
    let mut charged: HashMap<u16, u64> = HashMap::new();
    memcgs.frames().audit().for_each_frame(|_, frame| {
        let memcg = frame.as_folio().memcg();
        if frame.kind().is_given_out() && memcg != 0 {
            *charged.entry(memcg).or_default() += frame.word().order().pages();
        }
    });
    assert!(charged.is_empty(), "{charged:?}");
    let mut listed = 0;
    memcgs.audit().for_each_listed(|_, _, _| listed += 1);
    assert_eq!(listed, 0);
    memcgs.tree().for_each_in_subtree(MemcgId::ROOT, |id| {
        assert_eq!((memcgs.charges().usage(id), memcgs.tree().spaces(id)), (0, 0), "{id:?}");
    });
    for _ in 0..100 {
        memcgs.lifecycle().sweep();
    }
    let stats = memcgs.counters().stats(MemcgId::ROOT);
    let faults: u64 = shared.faults.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    assert_eq!(
        (stats[MemcgStat::Pgactivate as usize], stats[MemcgStat::Pgfault as usize]),
        (0, faults as i64)
    );
    assert!(faults > 1000, "{faults} faults");
    let mut left = 0;
    memcgs.tree().for_each_in_subtree(MemcgId::ROOT, |id| left += u32::from(memcgs.tree().hold(id).is_err()));
    assert_eq!(left, 0, "removed memcgs are gone");
    assert_sound(&memcgs);
    crate::common::assert_sound(memcgs.frames());
}

#[test]
fn threads_keep_lists_and_charges_sound() {
    SEEDS.into_iter().for_each(stress);
}
