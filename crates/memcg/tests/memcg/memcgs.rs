//! Memcgs against a simple model: charges, limits, and which memcg is removed when.

use crate::common::{Machine, after_all_holds, holds};
use crate::support::{assert_sound, family, memcgs};
use proptest::prelude::*;
use quire_arch::{LockClass, Platform};
use quire_memcg::{Limit, MemcgError, MemcgEvent, MemcgId, MemcgStat, Memcgs, OverHigh, OverLimit};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A memcg in the model.
#[derive(Clone, Debug)]
struct Model {
    id: MemcgId,
    parent: Option<usize>,
    online: bool,
    max: u64,
    swap_max: u64,
    spaces: u32,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Create(usize),
    Remove(usize),
    Charge(usize, u64, usize),
    Anyway(usize, u64, usize),
    Uncharge(usize, u64, usize),
    Swap(usize, u64),
    Unswap(usize, u64),
    SetMax(usize, Option<u64>),
    SetSwapMax(usize, Option<u64>),
    Hold(usize),
    Release(usize),
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    let memcg = 0..12usize;
    let pages = prop_oneof![4 => 1..4u64, 2 => 30..200u64, 1 => Just(512u64)];
    let limit = prop_oneof![1 => Just(None), 3 => (0..700u64).prop_map(Some)];
    prop_oneof![
        2 => memcg.clone().prop_map(Step::Create),
        1 => memcg.clone().prop_map(Step::Remove),
        6 => (memcg.clone(), pages.clone(), 0..2usize).prop_map(|(g, p, c)| Step::Charge(g, p, c)),
        1 => (memcg.clone(), pages.clone(), 0..2usize).prop_map(|(g, p, c)| Step::Anyway(g, p, c)),
        5 => (memcg.clone(), pages.clone(), 0..2usize).prop_map(|(g, p, c)| Step::Uncharge(g, p, c)),
        2 => (memcg.clone(), pages.clone()).prop_map(|(g, p)| Step::Swap(g, p)),
        2 => (memcg.clone(), pages).prop_map(|(g, p)| Step::Unswap(g, p)),
        1 => (memcg.clone(), limit.clone()).prop_map(|(g, l)| Step::SetMax(g, l)),
        1 => (memcg.clone(), limit).prop_map(|(g, l)| Step::SetSwapMax(g, l)),
        1 => memcg.clone().prop_map(Step::Hold),
        1 => memcg.prop_map(Step::Release),
        1 => Just(Step::Drain),
    ]
}

fn up(models: &[Model], of: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(of), |&now| models[now].parent)
}

/// Pages that are charged to a memcg or below it.
fn total(models: &[Model], charges: &HashMap<usize, u64>, of: usize) -> u64 {
    charges
        .iter()
        .filter(|&(&from, _)| up(models, from).any(|above| above == of))
        .map(|(_, pages)| pages)
        .sum()
}

/// The first memcg on the way up that has no room for `pages`.
fn full(
    models: &[Model],
    charges: &HashMap<usize, u64>,
    of: usize,
    pages: u64,
    max: fn(&Model) -> u64,
) -> Option<MemcgId> {
    up(models, of)
        .find(|&above| total(models, charges, above) + pages > max(&models[above]))
        .map(|at| models[at].id)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn charges_are_those_of_a_simple_model(steps in prop::collection::vec(step(), 1..120)) {
        crate::common::run_on(0);
        let memcgs = memcgs(2);
        let mut models: Vec<Model> = Vec::new();
        let (mut charges, mut swaps) = (HashMap::<usize, u64>::new(), HashMap::<usize, u64>::new());
        let pick = |models: &[Model], nth: usize| (!models.is_empty()).then(|| nth % models.len());
        for (nth, step) in steps.into_iter().enumerate() {
            let on = |cpu| { crate::common::run_on(cpu); memcgs.frames().platform().pin() };
            match step {
                Step::Create(parent) => {
                    let parent = pick(&models, parent + 1).filter(|_| parent % 3 > 0);
                    let above = parent.map_or(MemcgId::ROOT, |parent| models[parent].id);
                    let made = memcgs.lifecycle().create(above, &format!("g{nth}"));
                    if parent.is_some_and(|parent| !models[parent].online) {
                        // The number may be that of a later memcg by now.
                        if let Ok(id) = made {
                            memcgs.lifecycle().remove(id).unwrap();
                        }
                    } else {
                        models.push(Model { id: made.unwrap(), parent, online: true, max: u64::MAX, swap_max: u64::MAX, spaces: 0 });
                    }
                }
                Step::Remove(at) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let children = models.iter().any(|child| child.online && child.parent == Some(at));
                    let expected = if children || models[at].spaces > 0 { Err(MemcgError::Busy) } else { Ok(()) };
                    prop_assert_eq!(memcgs.lifecycle().remove(models[at].id), expected);
                    models[at].online = expected.is_err();
                },
                Step::Charge(at, pages, cpu) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let expected = full(&models, &charges, at, pages, |model| model.max);
                    let stock = memcgs.charges().stocked(models[at].id);
                    match memcgs.charges().try_charge(&on(cpu), models[at].id, pages) {
                        Ok(()) => {
                            // What a CPU has in stock was charged before the limit came down.
                            prop_assert!(expected.is_none() || stock >= pages, "charged {} past a limit", pages);
                            *charges.entry(at).or_default() += pages;
                        }
                        Err(OverLimit { memcg, .. }) => prop_assert_eq!(Some(memcg), expected),
                    }
                },
                Step::Anyway(at, pages, cpu) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    memcgs.charges().charge_anyway(&on(cpu), models[at].id, pages);
                    *charges.entry(at).or_default() += pages;
                },
                Step::Uncharge(at, pages, cpu) => if let Some(at) = pick(&models, at) {
                    let charged = charges.entry(at).or_default();
                    let pages = pages.min(*charged);
                    if pages > 0 {
                        *charged -= pages;
                        memcgs.charges().uncharge(&on(cpu), models[at].id, pages);
                    }
                },
                Step::Swap(at, pages) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let expected = full(&models, &swaps, at, pages, |model| model.swap_max);
                    let got = memcgs.charges().charge_swap(models[at].id, pages);
                    prop_assert_eq!(got.err().map(|over| over.memcg), expected);
                    if got.is_ok() {
                        *swaps.entry(at).or_default() += pages;
                    }
                },
                Step::Unswap(at, pages) => if let Some(at) = pick(&models, at) {
                    let charged = swaps.entry(at).or_default();
                    let pages = pages.min(*charged);
                    if pages > 0 {
                        *charged -= pages;
                        memcgs.charges().uncharge_swap(models[at].id, pages);
                    }
                },
                // A limit below what is in use, or in stock, is another test's.
                Step::SetMax(at, pages) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let _ = memcgs.files().set(models[at].id, Limit::Max, pages.map(|pages| pages << 12)).unwrap();
                    models[at].max = pages.unwrap_or(u64::MAX);
                    memcgs.charges().drain_stocks(&on(0));
                },
                Step::SetSwapMax(at, pages) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let _ = memcgs.files().set(models[at].id, Limit::SwapMax, pages.map(|pages| pages << 12)).unwrap();
                    models[at].swap_max = pages.unwrap_or(u64::MAX);
                },
                Step::Hold(at) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    memcgs.tree().hold(models[at].id).unwrap();
                    models[at].spaces += 1;
                },
                Step::Release(at) => if let Some(at) = pick(&models, at).filter(|&at| models[at].spaces > 0) {
                    memcgs.tree().release(models[at].id);
                    models[at].spaces -= 1;
                },
                Step::Drain => memcgs.charges().drain_stocks(&on(0)),
            }
            for (at, model) in models.iter().enumerate() {
                let kept = charges.get(&at).copied().unwrap_or(0);
                // Of one that is gone the number may be another's.
                if model.online || total(&models, &charges, at) + total(&models, &swaps, at) > 0 {
                    prop_assert_eq!(memcgs.charges().charged(model.id), kept);
                    prop_assert_eq!(memcgs.charges().swap_usage(model.id), total(&models, &swaps, at));
                }
            }
            assert_sound(&memcgs);
        }
        memcgs.charges().drain_stocks(&memcgs.frames().platform().pin());
        for (at, model) in models.iter().enumerate() {
            if model.online {
                prop_assert_eq!(memcgs.charges().usage(model.id), total(&models, &charges, at));
            }
        }
    }
}

#[test]
fn a_removed_memcg_stays_until_its_last_charge_goes() {
    let memcgs = memcgs(2);
    let pin = memcgs.frames().platform().pin();
    let a = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let b = memcgs.lifecycle().create(a, "b").unwrap();
    assert_eq!(memcgs.lifecycle().remove(a), Err(MemcgError::Busy));
    memcgs.charges().try_charge(&pin, b, 3).unwrap();
    memcgs.charges().charge_swap(b, 1).unwrap();
    memcgs.counters().add_stat(&pin, b, MemcgStat::Pgfault, 7);
    memcgs.counters().count(b, MemcgEvent::Oom, 2);
    memcgs.lifecycle().remove(b).unwrap();
    assert_eq!((memcgs.tree().find("a/b"), memcgs.tree().hold(b)), (None, Err(MemcgError::NoMemcg)));
    assert_eq!(memcgs.lifecycle().create(a, "b").map(|again| again == b), Ok(false));
    let c = memcgs.tree().find("a/b").unwrap();
    let mut seen = Vec::new();
    memcgs.tree().for_each_in_subtree(a, |id| seen.push(id));
    assert_eq!(seen, [a, c, b], "its lists stay reachable");
    assert_eq!(memcgs.charges().usage(a), 3, "nothing is kept in stock for what was removed");
    memcgs.charges().uncharge(&pin, b, 3);
    memcgs.lifecycle().sweep();
    assert_eq!(memcgs.tree().next_in_subtree(b, None), Some(b), "a page is swapped out");
    memcgs.charges().uncharge_swap(b, 1);
    let section = memcgs.frames().epoch().enter(&pin);
    memcgs.lifecycle().sweep();
    assert_eq!(memcgs.tree().next_in_subtree(b, None), Some(b), "a CPU may be just adding to its counts");
    drop(section);
    memcgs.lifecycle().sweep();
    assert_eq!(memcgs.tree().next_in_subtree(b, None), None);
    assert_eq!(memcgs.charges().usage(a), 0);
    assert_eq!(memcgs.counters().stats(a)[MemcgStat::Pgfault as usize], 7);
    assert_eq!(
        (memcgs.counters().events(a, MemcgEvent::Oom), memcgs.counters().local_events(a, MemcgEvent::Oom)),
        (2, 0)
    );
    assert_eq!(memcgs.lifecycle().create(a, "d"), Ok(b), "the number is used again");
    assert_eq!(memcgs.counters().stats(b)[MemcgStat::Pgfault as usize], 0);
    assert_sound(&memcgs);
}

/// Hazard: a memcg is removed and gone while a thread that visits it sleeps, and what comes after it is
/// missed.
/// Hazard: a memcg is removed while a thread works for a charge that failed there, and another one gets its
/// number.
#[test]
fn a_memcg_whose_charge_failed_is_kept_or_known_to_be_gone() {
    let memcgs = memcgs(1);
    let pin = memcgs.frames().platform().pin();
    let make = || memcgs.lifecycle().create(MemcgId::ROOT, "g").unwrap();
    let remove = |memcg| {
        memcgs.lifecycle().remove(memcg).unwrap();
        (0..4).for_each(|_| memcgs.lifecycle().sweep());
    };
    let first = make();
    let _ = memcgs.files().set(first, Limit::Max, Some(0)).unwrap();
    let over = memcgs.charges().try_charge(&pin, first, 1).unwrap_err();
    let kept = memcgs.tree().keep(over).unwrap();
    assert_eq!(kept.id(), first);
    remove(first);
    assert!(memcgs.tree().keep(over).is_some(), "it was removed, and is kept");
    let second = make();
    assert_ne!(second, first, "it is kept");
    remove(second);
    drop(kept);
    (0..4).for_each(|_| memcgs.lifecycle().sweep());
    assert!(memcgs.tree().keep(over).is_none() && memcgs.tree().keep_present(first).is_none(), "it is gone");
    let later = [make(), memcgs.lifecycle().create(MemcgId::ROOT, "h").unwrap()];
    assert!(later.contains(&first), "its number is used again");
    assert!(memcgs.tree().keep(over).is_none() && memcgs.tree().keep_present(first).is_some());
    assert_sound(&memcgs);
}

#[test]
fn a_memcg_that_is_visited_is_gone_after_the_visit() {
    let memcgs = memcgs(1);
    let [a, b, c] = ["a", "b", "c"].map(|name| memcgs.lifecycle().create(MemcgId::ROOT, name).unwrap());
    let mut visits = memcgs.tree().visit(MemcgId::ROOT);
    assert_eq!((visits.next(), visits.next()), (Some(MemcgId::ROOT), Some(c)));
    for gone in [b, c] {
        memcgs.lifecycle().remove(gone).unwrap();
    }
    (0..3).for_each(|_| memcgs.lifecycle().sweep());
    assert_eq!([b, c].map(|id| memcgs.tree().next_in_subtree(id, None)), [None, Some(c)]);
    assert_eq!(visits.next(), Some(a), "it comes after what is gone");
    (0..3).for_each(|_| memcgs.lifecycle().sweep());
    assert_eq!(memcgs.tree().next_in_subtree(c, None), None, "it is not visited any more");
    // The last one is left by the end of the visits, or when they are given up.
    assert_eq!((visits.next(), visits.next()), (None, None));
    let mut visits = memcgs.tree().visit(a);
    assert_eq!(visits.next(), Some(a));
    memcgs.lifecycle().remove(a).unwrap();
    (0..3).for_each(|_| memcgs.lifecycle().sweep());
    assert_eq!(memcgs.tree().next_in_subtree(a, None), Some(a));
    drop(visits);
    (0..3).for_each(|_| memcgs.lifecycle().sweep());
    assert_eq!(memcgs.tree().next_in_subtree(a, None), None);
    assert_eq!(memcgs.tree().visit(a).next(), None, "there is no such memcg");
    assert_sound(&memcgs);
}

/// Readers of statistics that overlap: at each moment one of them is there.
#[test]
fn a_removed_memcg_is_gone_beside_readers_that_overlap() {
    let memcgs = memcgs(1);
    let [a, b] = ["a", "b"].map(|name| memcgs.lifecycle().create(MemcgId::ROOT, name).unwrap());
    let mut seen = Vec::new();
    memcgs.tree().for_each_in_subtree(MemcgId::ROOT, |id| {
        if id == MemcgId::ROOT {
            memcgs.lifecycle().remove(b).unwrap();
            (0..3).for_each(|_| memcgs.lifecycle().sweep());
            assert_eq!(memcgs.tree().next_in_subtree(b, None), None);
        }
        seen.push(id);
    });
    assert_eq!(seen, [MemcgId::ROOT, a]);
    assert_sound(&memcgs);
}

/// Hazard: memcgs go while the counters of the one above are read, and what they had is in neither.
#[test]
fn what_a_memcg_counted_that_goes_is_never_missing_above() {
    const CHILDREN: u64 = 200;
    let readers: [fn(&Memcgs<Machine>, MemcgId) -> u64; 2] = [
        |memcgs, id| memcgs.counters().events(id, MemcgEvent::Max),
        |memcgs, id| memcgs.counters().stats(id)[MemcgStat::Pgfault as usize] as u64,
    ];
    for read in readers {
        let memcgs = Arc::new(memcgs(1));
        let a = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
        let mut children: VecDeque<MemcgId> = (0..CHILDREN)
            .map(|nth| {
                let id = memcgs.lifecycle().create(a, &format!("{nth}")).unwrap();
                memcgs.counters().count(id, MemcgEvent::Max, 1);
                memcgs.counters().add_stat(&memcgs.frames().platform().pin(), id, MemcgStat::Pgfault, 1);
                id
            })
            .collect();
        let beside = Arc::clone(&memcgs);
        // Beside each step of the reader the oldest one goes, which it would come to last.
        let step = move || {
            if let Some(oldest) = children.pop_front() {
                beside.lifecycle().remove(oldest).unwrap();
            }
        };
        let seen = crate::common::after_each_hold(LockClass::Memcgs, step, || {
            memcgs.lifecycle().sweep();
            read(&memcgs, a)
        });
        assert_eq!((seen, read(&memcgs, a)), (CHILDREN, CHILDREN));
        assert_sound(&memcgs);
    }
}

/// Hazard: a sweep looks through all CPUs for each of many removed memcgs under one hold of the lock.
#[test]
fn each_removed_memcg_is_checked_under_a_hold_of_its_own() {
    let memcgs = memcgs(2);
    let ids: Vec<MemcgId> =
        (0..8).map(|nth| memcgs.lifecycle().create(MemcgId::ROOT, &format!("{nth}")).unwrap()).collect();
    for &id in &ids {
        memcgs.charges().charge_anyway(&memcgs.frames().platform().pin(), id, 1);
        memcgs.lifecycle().remove(id).unwrap();
    }
    let holds = Arc::new(AtomicU64::new(0));
    let count = {
        let holds = Arc::clone(&holds);
        move || _ = holds.fetch_add(1, Ordering::Relaxed)
    };
    crate::common::after_each_hold(LockClass::Memcgs, count, || memcgs.lifecycle().sweep());
    let holds = holds.load(Ordering::Relaxed);
    assert!(holds >= ids.len() as u64, "{holds} holds for {} memcgs", ids.len());
}

/// Hazard: a timer's interrupt looks through all CPUs for each of many removed memcgs.
#[test]
fn a_tick_checks_one_of_the_removed_memcgs() {
    let memcgs = memcgs(2);
    let ids: Vec<MemcgId> =
        (0..8).map(|nth| memcgs.lifecycle().create(MemcgId::ROOT, &format!("{nth}")).unwrap()).collect();
    let charge = |id| memcgs.charges().charge_anyway(&memcgs.frames().platform().pin(), id, 200);
    let uncharge = |id| memcgs.charges().uncharge(&memcgs.frames().platform().pin(), id, 200);
    ids.iter().for_each(|&id| charge(id));
    ids.iter().for_each(|&id| memcgs.lifecycle().remove(id).unwrap());
    ids.iter().for_each(|&id| uncharge(id));
    let there = || ids.iter().filter(|&&id| memcgs.tree().next_in_subtree(id, None).is_some()).count();
    assert_eq!(there(), 8);
    memcgs.lifecycle().sweep_one();
    assert_eq!(there(), 7);
    (0..7).for_each(|_| memcgs.lifecycle().sweep_one());
    assert_eq!(there(), 0, "each has its turn");
    assert_sound(&memcgs);
}

/// Hazard: a path is as long as its caller likes, and is looked through with the lock held.
#[test]
fn what_cannot_be_a_path_is_not_looked_up_under_the_lock() {
    let memcgs = memcgs(1);
    let step = || panic!("the lock was taken for it");
    crate::common::after_each_hold(LockClass::Memcgs, step, || {
        assert_eq!(memcgs.tree().find(&"x".repeat(1 << 20)), None);
        assert_eq!(memcgs.tree().find(&"x/".repeat(1 << 20)), None);
        assert_eq!(memcgs.tree().find(".."), None);
    });
    assert_eq!(memcgs.tree().find(&"/".repeat(1 << 20)), Some(MemcgId::ROOT));
}

#[test]
fn rounds_go_on_where_the_last_one_was() {
    let memcgs = memcgs(1);
    let [a, b, c] = family(&memcgs);
    let begins = |count| (0..count).filter_map(|_| memcgs.tree().visit_round(a).next()).collect::<Vec<_>>();
    assert_eq!(begins(4), [a, c, b, a]);
    let round = || memcgs.tree().visit_round(a).collect::<Vec<_>>();
    assert_eq!((round(), round()), (vec![c, b, a], vec![c, b, a]), "each once");
    let mut half = memcgs.tree().visit_round(a);
    assert_eq!((half.next(), half.next()), (Some(c), Some(b)));
    memcgs.lifecycle().remove(c).unwrap();
    (0..3).for_each(|_| memcgs.lifecycle().sweep());
    assert_eq!((half.next(), half.next(), half.next()), (Some(a), None, None), "it ends where it began");
    (0..3).for_each(|_| memcgs.lifecycle().sweep());
    assert_eq!(memcgs.tree().next_in_subtree(c, None), None, "the round is over");
    assert_eq!((begins(3), round()), (vec![b, a, b], vec![a, b]));
    assert_eq!(memcgs.tree().next_in_subtree(b, Some(a)), Some(b), "what is not below begins anew");
}

#[test]
fn what_is_over_the_high_limit_is_noted() {
    let memcgs = memcgs(1);
    let pin = memcgs.frames().platform().pin();
    let a = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let b = memcgs.lifecycle().create(a, "b").unwrap();
    let _ = memcgs.files().set(a, Limit::High, Some(100 << 12)).unwrap();
    memcgs.charges().try_charge(&pin, b, 100).unwrap();
    assert_eq!(memcgs.charges().over_high(b), None);
    memcgs.charges().try_charge(&pin, b, 200).unwrap();
    let over = |pages| Some(OverHigh { memcg: a, pages });
    assert_eq!((memcgs.charges().over_high(b), memcgs.charges().over_high(a)), (over(200), None));
    assert_eq!(memcgs.charges().first_over_high(a), over(200), "noted or not");
    memcgs.charges().forgive_high(b);
    assert_eq!(memcgs.charges().over_high(b), None);
    memcgs.charges().try_charge(&pin, b, 70).unwrap();
    assert_eq!(memcgs.charges().over_high(b), over(270), "the next charge tells anew");
    memcgs.charges().uncharge(&pin, b, 320);
    memcgs.charges().drain_stocks(&pin);
    assert_eq!((memcgs.charges().over_high(b), memcgs.charges().usage(a)), (None, 50));
}

#[test]
fn a_limit_is_met_to_the_page_and_told_by_its_memcg() {
    let memcgs = memcgs(2);
    let [a, b, c] = family(&memcgs);
    let _ = memcgs.files().set(a, Limit::Max, Some(100 << 12)).unwrap();
    crate::common::run_on(1);
    {
        let pin = memcgs.frames().platform().pin();
        memcgs.charges().try_charge(&pin, c, 1).unwrap();
        assert_eq!((memcgs.charges().usage(a), memcgs.charges().stocked(c)), (64, 63));
    }
    crate::common::run_on(0);
    let pin = memcgs.frames().platform().pin();
    for _ in 0..99 {
        memcgs.charges().try_charge(&pin, b, 1).unwrap();
    }
    assert_eq!(memcgs.charges().try_charge(&pin, b, 1).map_err(|over| over.memcg), Err(a));
    assert_eq!((memcgs.charges().usage(a), memcgs.charges().usage(b)), (100, 99));
    memcgs.charges().charge_anyway(&pin, b, 1);
    assert_eq!(memcgs.charges().usage(a), 101);
    assert_sound(&memcgs);
}

/// The first full memcg on the way up is not the only one: what is in stock for a sibling fills the one above
/// it.
#[test]
fn stocks_are_drained_at_each_full_memcg_on_the_way_up() {
    let memcgs = memcgs(2);
    let [a, b, c] = family(&memcgs);
    for (id, pages) in [(a, 137), (b, 133)] {
        let _ = memcgs.files().set(id, Limit::Max, Some(pages << 12)).unwrap();
    }
    for (cpu, id) in [(1, c), (0, b)] {
        crate::common::run_on(cpu);
        memcgs.charges().try_charge(&memcgs.frames().platform().pin(), id, 1).unwrap();
    }
    let pin = memcgs.frames().platform().pin();
    assert_eq!((memcgs.charges().stocked(b), memcgs.charges().stocked(c)), (63, 63));
    assert_eq!(memcgs.charges().try_charge(&pin, b, 73), Ok(()));
    assert_eq!((memcgs.charges().usage(b), memcgs.charges().usage(a)), (74, 75));
    assert_eq!(memcgs.charges().try_charge(&pin, b, 60).map_err(|over| over.memcg), Err(b));
    assert_sound(&memcgs);
}

/// The examples are worked out by hand.
#[test]
fn protection_is_shared_by_what_is_used() {
    let memcgs = memcgs(1);
    let pin = memcgs.frames().platform().pin();
    let [a, b, c] = family(&memcgs);
    let set = |id, limit, pages: u64| memcgs.files().set(id, limit, Some(pages << 12)).unwrap();
    let _ = set(a, Limit::Low, 100);
    memcgs.charges().charge_anyway(&pin, b, 300);
    memcgs.charges().charge_anyway(&pin, c, 100);
    let low = |root, id| memcgs.tree().protection(root, id).low;
    // No claims: shared by use.
    assert_eq!((low(MemcgId::ROOT, b), low(MemcgId::ROOT, c)), (75, 25));
    // Claims beyond what the parent has: shared by the claims that are in use.
    let _ = (set(b, Limit::Low, 150), set(c, Limit::Low, 500));
    assert_eq!((low(MemcgId::ROOT, b), low(MemcgId::ROOT, c)), (60, 40));
    // One claims a part: the rest is shared by the use beyond the claims.
    let _ = (set(b, Limit::Low, 20), set(c, Limit::Low, 0));
    assert_eq!((low(MemcgId::ROOT, b), low(MemcgId::ROOT, c)), (20 + 80 * 280 / 380, 80 * 100 / 380));
    // Against its own parent a memcg has what it claims, and against itself nothing.
    assert_eq!((low(a, b), low(b, b), low(c, b), low(MemcgId::ROOT, a)), (20, 0, 0, 100));
    let _ = set(a, Limit::Min, 50);
    let _ = set(b, Limit::Min, 30);
    memcgs.charges().uncharge(&pin, b, 290);
    memcgs.charges().drain_stocks(&pin);
    assert_eq!(memcgs.tree().protection(MemcgId::ROOT, b).min, 10);
    assert_eq!(memcgs.tree().protection(MemcgId::ROOT, c).min, (50 - 10) * 100 / (110 - 10));
    memcgs.charges().uncharge(&pin, b, 10);
    memcgs.charges().drain_stocks(&pin);
    memcgs.lifecycle().remove(b).unwrap();
    assert_eq!(memcgs.tree().protection(MemcgId::ROOT, c).min, 50);
}

#[test]
fn names_and_paths() {
    let memcgs = memcgs(1);
    for bad in ["", ".", "..", "a/b", "a\nb", &"x".repeat(65)] {
        assert_eq!(memcgs.lifecycle().create(MemcgId::ROOT, bad), Err(MemcgError::BadName), "{bad:?}");
    }
    let long = "y".repeat(64);
    let a = memcgs.lifecycle().create(MemcgId::ROOT, &long).unwrap();
    let b = memcgs.lifecycle().create(a, "b\u{fc}").unwrap();
    assert_eq!(memcgs.lifecycle().create(a, "b\u{fc}"), Err(MemcgError::Exists));
    let path = format!("/{long}/b\u{fc}");
    assert_eq!(
        (memcgs.tree().find(&path), memcgs.tree().find("/"), memcgs.tree().find("/missing")),
        (Some(b), Some(MemcgId::ROOT), None)
    );
    assert_eq!(memcgs.lifecycle().remove(MemcgId::ROOT), Err(MemcgError::Root));
    let mut deep = a;
    let deepest = (0..100).find_map(|_| match memcgs.lifecycle().create(deep, "d") {
        Ok(id) => {
            deep = id;
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(deepest, Some(MemcgError::TooDeep));
}

/// Siblings are found by name however many there are: of the same name below several parents, and where a
/// removed one that is still charged had the name before.
#[test]
fn each_of_many_siblings_is_found_by_its_name() {
    let memcgs = memcgs(1);
    let pin = memcgs.frames().platform().pin();
    let parents = ["one", "two"].map(|name| memcgs.lifecycle().create(MemcgId::ROOT, name).unwrap());
    let name = |number: usize| format!("session-{number}.scope");
    let mut children: Vec<MemcgId> = Vec::new();
    for number in 0..1000 {
        children.push(memcgs.lifecycle().create(parents[number % 2], &name(number / 2)).unwrap());
    }
    assert_eq!(memcgs.lifecycle().create(parents[0], &name(7)), Err(MemcgError::Exists));
    // Every third one is removed, and every sixth one of them is charged, so it stays in the tree.
    for number in (0..1000).step_by(3) {
        if number % 6 == 0 {
            memcgs.charges().charge_anyway(&pin, children[number], 1);
        }
        memcgs.lifecycle().remove(children[number]).unwrap();
    }
    for _ in 0..1000 {
        memcgs.lifecycle().sweep();
    }
    let path = |number: usize| format!("/{}/{}", ["one", "two"][number % 2], name(number / 2));
    for (number, &child) in children.iter().enumerate() {
        let there = (number % 3 > 0).then_some(child);
        assert_eq!(memcgs.tree().find(&path(number)), there, "{}", path(number));
    }
    let charged: Vec<MemcgId> = (0..1000).step_by(6).map(|number| children[number]).collect();
    for number in (0..1000).step_by(3) {
        children[number] = memcgs.lifecycle().create(parents[number % 2], &name(number / 2)).unwrap();
    }
    charged.into_iter().for_each(|memcg| memcgs.charges().uncharge(&pin, memcg, 1));
    for _ in 0..1000 {
        memcgs.lifecycle().sweep();
    }
    for (number, &child) in children.iter().enumerate() {
        assert_eq!(memcgs.tree().find(&path(number)), Some(child), "{}", path(number));
    }
    drop(pin);
    assert_sound(&memcgs);
}

/// Hazard: memory for a memcg is looked for, and the lists of all CPUs are drained, under the lock that each
/// creation and each removal takes.
#[test]
fn no_memory_is_allocated_under_the_lock_of_the_memcgs() {
    let memcgs = Arc::new(memcgs(2));
    let allocates = |class| matches!(class, LockClass::Slab | LockClass::Pcp | LockClass::Zone);
    let step = move |dropped| assert!(!allocates(dropped) || !holds(LockClass::Memcgs), "{dropped:?}");
    // The table's second page comes with memcg 512.
    after_all_holds(step, || {
        for nth in 0..520 {
            memcgs.lifecycle().create(MemcgId::ROOT, &format!("g{nth}")).unwrap();
        }
    });
    assert_sound(&memcgs);
}
