//! Groups against a simple model: charges, limits, who is removed when.

use crate::support::{assert_sound, groups};
use proptest::prelude::*;
use quire_arch::Platform;
use quire_group::{GroupError, GroupEvent, GroupId, GroupStat, Limit, OverHigh, OverLimit};
use std::collections::HashMap;

/// A group in the model.
#[derive(Clone, Debug)]
struct Model {
    id: GroupId,
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
    let group = 0..12usize;
    let pages = prop_oneof![4 => 1..4u64, 2 => 30..200u64, 1 => Just(512u64)];
    let limit = prop_oneof![1 => Just(None), 3 => (0..700u64).prop_map(Some)];
    prop_oneof![
        2 => group.clone().prop_map(Step::Create),
        1 => group.clone().prop_map(Step::Remove),
        6 => (group.clone(), pages.clone(), 0..2usize).prop_map(|(g, p, c)| Step::Charge(g, p, c)),
        1 => (group.clone(), pages.clone(), 0..2usize).prop_map(|(g, p, c)| Step::Anyway(g, p, c)),
        5 => (group.clone(), pages.clone(), 0..2usize).prop_map(|(g, p, c)| Step::Uncharge(g, p, c)),
        2 => (group.clone(), pages.clone()).prop_map(|(g, p)| Step::Swap(g, p)),
        2 => (group.clone(), pages).prop_map(|(g, p)| Step::Unswap(g, p)),
        1 => (group.clone(), limit.clone()).prop_map(|(g, l)| Step::SetMax(g, l)),
        1 => (group.clone(), limit).prop_map(|(g, l)| Step::SetSwapMax(g, l)),
        1 => group.clone().prop_map(Step::Hold),
        1 => group.prop_map(Step::Release),
        1 => Just(Step::Drain),
    ]
}

fn up(models: &[Model], of: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(of), |&now| models[now].parent)
}

/// Pages that are charged to a group or below it.
fn total(models: &[Model], charges: &HashMap<usize, u64>, of: usize) -> u64 {
    charges
        .iter()
        .filter(|&(&from, _)| up(models, from).any(|above| above == of))
        .map(|(_, pages)| pages)
        .sum()
}

/// The first group on the way up that has no room for `pages`.
fn full(
    models: &[Model],
    charges: &HashMap<usize, u64>,
    of: usize,
    pages: u64,
    max: fn(&Model) -> u64,
) -> Option<GroupId> {
    up(models, of)
        .find(|&above| total(models, charges, above) + pages > max(&models[above]))
        .map(|at| models[at].id)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn charges_are_those_of_a_simple_model(steps in prop::collection::vec(step(), 1..120)) {
        crate::common::run_on(0);
        let groups = groups(2);
        let mut models: Vec<Model> = Vec::new();
        let (mut charges, mut swaps) = (HashMap::<usize, u64>::new(), HashMap::<usize, u64>::new());
        let pick = |models: &[Model], nth: usize| (!models.is_empty()).then(|| nth % models.len());
        for (nth, step) in steps.into_iter().enumerate() {
            let on = |cpu| { crate::common::run_on(cpu); groups.frames().platform().pin() };
            match step {
                Step::Create(parent) => {
                    let parent = pick(&models, parent + 1).filter(|_| parent % 3 > 0);
                    let above = parent.map_or(GroupId::ROOT, |parent| models[parent].id);
                    let made = groups.create(above, &format!("g{nth}"));
                    if parent.is_some_and(|parent| !models[parent].online) {
                        // The number may be that of a later group by now.
                        if let Ok(id) = made {
                            groups.remove(id).unwrap();
                        }
                    } else {
                        models.push(Model { id: made.unwrap(), parent, online: true, max: u64::MAX, swap_max: u64::MAX, spaces: 0 });
                    }
                }
                Step::Remove(at) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let children = models.iter().any(|child| child.online && child.parent == Some(at));
                    let expected = if children || models[at].spaces > 0 { Err(GroupError::Busy) } else { Ok(()) };
                    prop_assert_eq!(groups.remove(models[at].id), expected);
                    models[at].online = expected.is_err();
                },
                Step::Charge(at, pages, cpu) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let expected = full(&models, &charges, at, pages, |model| model.max);
                    let stock = groups.stocked(models[at].id);
                    match groups.try_charge(&on(cpu), models[at].id, pages) {
                        Ok(()) => {
                            // What a CPU has in stock was charged before the limit came down.
                            prop_assert!(expected.is_none() || stock >= pages, "charged {} past a limit", pages);
                            *charges.entry(at).or_default() += pages;
                        }
                        Err(OverLimit { group }) => prop_assert_eq!(Some(group), expected),
                    }
                },
                Step::Anyway(at, pages, cpu) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    groups.charge_anyway(&on(cpu), models[at].id, pages);
                    *charges.entry(at).or_default() += pages;
                },
                Step::Uncharge(at, pages, cpu) => if let Some(at) = pick(&models, at) {
                    let charged = charges.entry(at).or_default();
                    let pages = pages.min(*charged);
                    if pages > 0 {
                        *charged -= pages;
                        groups.uncharge(&on(cpu), models[at].id, pages);
                    }
                },
                Step::Swap(at, pages) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let expected = full(&models, &swaps, at, pages, |model| model.swap_max);
                    let got = groups.charge_swap(models[at].id, pages);
                    prop_assert_eq!(got.err().map(|over| over.group), expected);
                    if got.is_ok() {
                        *swaps.entry(at).or_default() += pages;
                    }
                },
                Step::Unswap(at, pages) => if let Some(at) = pick(&models, at) {
                    let charged = swaps.entry(at).or_default();
                    let pages = pages.min(*charged);
                    if pages > 0 {
                        *charged -= pages;
                        groups.uncharge_swap(models[at].id, pages);
                    }
                },
                // A limit below what is in use, or in stock, is another test's.
                Step::SetMax(at, pages) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let _ = groups.set(models[at].id, Limit::Max, pages.map(|pages| pages << 12)).unwrap();
                    models[at].max = pages.unwrap_or(u64::MAX);
                    groups.drain_stocks(&on(0));
                },
                Step::SetSwapMax(at, pages) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    let _ = groups.set(models[at].id, Limit::SwapMax, pages.map(|pages| pages << 12)).unwrap();
                    models[at].swap_max = pages.unwrap_or(u64::MAX);
                },
                Step::Hold(at) => if let Some(at) = pick(&models, at).filter(|&at| models[at].online) {
                    groups.hold(models[at].id).unwrap();
                    models[at].spaces += 1;
                },
                Step::Release(at) => if let Some(at) = pick(&models, at).filter(|&at| models[at].spaces > 0) {
                    groups.release(models[at].id);
                    models[at].spaces -= 1;
                },
                Step::Drain => groups.drain_stocks(&on(0)),
            }
            for (at, model) in models.iter().enumerate() {
                let kept = charges.get(&at).copied().unwrap_or(0);
                // Of one that is gone the number may be another's.
                if model.online || total(&models, &charges, at) + total(&models, &swaps, at) > 0 {
                    prop_assert_eq!(groups.charged(model.id), kept);
                    prop_assert_eq!(groups.swap_usage(model.id), total(&models, &swaps, at));
                }
            }
            assert_sound(&groups);
        }
        groups.drain_stocks(&groups.frames().platform().pin());
        for (at, model) in models.iter().enumerate() {
            if model.online {
                prop_assert_eq!(groups.usage(model.id), total(&models, &charges, at));
            }
        }
    }
}

#[test]
fn a_removed_group_stays_until_its_last_charge_goes() {
    let groups = groups(2);
    let pin = groups.frames().platform().pin();
    let a = groups.create(GroupId::ROOT, "a").unwrap();
    let b = groups.create(a, "b").unwrap();
    assert_eq!(groups.remove(a), Err(GroupError::Busy));
    groups.try_charge(&pin, b, 3).unwrap();
    groups.charge_swap(b, 1).unwrap();
    groups.add_stat(&pin, b, GroupStat::Pgfault, 7);
    groups.count(b, GroupEvent::Oom, 2);
    groups.remove(b).unwrap();
    assert_eq!((groups.find("a/b"), groups.hold(b)), (None, Err(GroupError::NoGroup)));
    assert_eq!(groups.create(a, "b").map(|again| again == b), Ok(false));
    let c = groups.find("a/b").unwrap();
    let mut seen = Vec::new();
    groups.for_each_in_subtree(a, |id| seen.push(id));
    assert_eq!(seen, [a, c, b], "its lists stay reachable");
    assert_eq!(groups.usage(a), 3, "nothing is kept in stock for what was removed");
    groups.uncharge(&pin, b, 3);
    groups.sweep();
    assert_eq!(groups.next_in_subtree(b, None), Some(b), "a page is swapped out");
    groups.uncharge_swap(b, 1);
    let section = groups.frames().epoch().enter(&pin);
    groups.sweep();
    assert_eq!(groups.next_in_subtree(b, None), Some(b), "a CPU may be just adding to its counts");
    drop(section);
    groups.sweep();
    assert_eq!(groups.next_in_subtree(b, None), None);
    assert_eq!(groups.usage(a), 0);
    assert_eq!(groups.stats(a)[GroupStat::Pgfault as usize], 7);
    assert_eq!((groups.events(a, GroupEvent::Oom), groups.local_events(a, GroupEvent::Oom)), (2, 0));
    assert_eq!(groups.create(a, "d"), Ok(b), "the number is used again");
    assert_eq!(groups.stats(b)[GroupStat::Pgfault as usize], 0);
    assert_sound(&groups);
}

#[test]
fn a_walk_keeps_groups_in_the_tree() {
    let groups = groups(1);
    let a = groups.create(GroupId::ROOT, "a").unwrap();
    let b = groups.create(a, "b").unwrap();
    let mut seen = Vec::new();
    groups.for_each_in_subtree(GroupId::ROOT, |id| {
        seen.push(id);
        if id == a {
            groups.remove(b).unwrap();
            groups.sweep();
        }
    });
    assert_eq!(seen, [GroupId::ROOT, a, b]);
    groups.sweep();
    assert_eq!(groups.next_in_subtree(b, None), None);
}

#[test]
fn rounds_go_on_where_the_last_one_was() {
    let groups = groups(1);
    let a = groups.create(GroupId::ROOT, "a").unwrap();
    let b = groups.create(a, "b").unwrap();
    let c = groups.create(a, "c").unwrap();
    let round: Vec<_> = (0..4).map(|_| groups.next_round(a)).collect();
    assert_eq!(round, [a, c, b, a]);
    groups.remove(c).unwrap();
    let round: Vec<_> = (0..3).map(|_| groups.next_round(a)).collect();
    assert_eq!(round, [b, a, b]);
    assert_eq!(groups.next_in_subtree(b, Some(a)), Some(b), "what is not below begins anew");
}

#[test]
fn what_is_over_the_high_limit_is_noted() {
    let groups = groups(1);
    let pin = groups.frames().platform().pin();
    let a = groups.create(GroupId::ROOT, "a").unwrap();
    let b = groups.create(a, "b").unwrap();
    let _ = groups.set(a, Limit::High, Some(100 << 12)).unwrap();
    groups.try_charge(&pin, b, 100).unwrap();
    assert_eq!(groups.over_high(b), None);
    groups.try_charge(&pin, b, 200).unwrap();
    let worst = |pages| Some(OverHigh { group: a, pages });
    assert_eq!((groups.over_high(b), groups.over_high(a)), (worst(200), None));
    groups.forgive_high(b);
    assert_eq!(groups.over_high(b), None);
    groups.try_charge(&pin, b, 70).unwrap();
    assert_eq!(groups.over_high(b), worst(270), "the next charge tells anew");
    groups.uncharge(&pin, b, 320);
    groups.drain_stocks(&pin);
    assert_eq!((groups.over_high(b), groups.usage(a)), (None, 50));
}

#[test]
fn a_limit_is_met_to_the_page_and_told_by_its_group() {
    let groups = groups(2);
    let a = groups.create(GroupId::ROOT, "a").unwrap();
    let b = groups.create(a, "b").unwrap();
    let c = groups.create(a, "c").unwrap();
    let _ = groups.set(a, Limit::Max, Some(100 << 12)).unwrap();
    crate::common::run_on(1);
    {
        let pin = groups.frames().platform().pin();
        groups.try_charge(&pin, c, 1).unwrap();
        assert_eq!((groups.usage(a), groups.stocked(c)), (64, 63));
    }
    crate::common::run_on(0);
    let pin = groups.frames().platform().pin();
    for _ in 0..99 {
        groups.try_charge(&pin, b, 1).unwrap();
    }
    assert_eq!(groups.try_charge(&pin, b, 1), Err(OverLimit { group: a }));
    assert_eq!((groups.usage(a), groups.usage(b)), (100, 99));
    assert_eq!((groups.events(a, GroupEvent::Max), groups.events(b, GroupEvent::Max)), (1, 0));
    groups.charge_anyway(&pin, b, 1);
    assert_eq!(groups.usage(a), 101);
    assert_sound(&groups);
}

/// The examples are worked out by hand.
#[test]
fn protection_is_shared_by_what_is_used() {
    let groups = groups(1);
    let pin = groups.frames().platform().pin();
    let a = groups.create(GroupId::ROOT, "a").unwrap();
    let b = groups.create(a, "b").unwrap();
    let c = groups.create(a, "c").unwrap();
    let set = |id, limit, pages: u64| groups.set(id, limit, Some(pages << 12)).unwrap();
    let _ = set(a, Limit::Low, 100);
    groups.charge_anyway(&pin, b, 300);
    groups.charge_anyway(&pin, c, 100);
    let low = |root, id| groups.protection(root, id).low;
    // Nobody claims: shared by use.
    assert_eq!((low(GroupId::ROOT, b), low(GroupId::ROOT, c)), (75, 25));
    // Claims beyond what the parent has: shared by the claims that are in use.
    let _ = (set(b, Limit::Low, 150), set(c, Limit::Low, 500));
    assert_eq!((low(GroupId::ROOT, b), low(GroupId::ROOT, c)), (60, 40));
    // One claims a part: the rest is shared by the use beyond the claims.
    let _ = (set(b, Limit::Low, 20), set(c, Limit::Low, 0));
    assert_eq!((low(GroupId::ROOT, b), low(GroupId::ROOT, c)), (20 + 80 * 280 / 380, 80 * 100 / 380));
    // Against its own parent a group has what it claims, and against itself nothing.
    assert_eq!((low(a, b), low(b, b), low(c, b), low(GroupId::ROOT, a)), (20, 0, 0, 100));
    let _ = set(a, Limit::Min, 50);
    let _ = set(b, Limit::Min, 30);
    groups.uncharge(&pin, b, 290);
    groups.drain_stocks(&pin);
    assert_eq!(groups.protection(GroupId::ROOT, b).min, 10);
    assert_eq!(groups.protection(GroupId::ROOT, c).min, (50 - 10) * 100 / (110 - 10));
    groups.uncharge(&pin, b, 10);
    groups.drain_stocks(&pin);
    groups.remove(b).unwrap();
    assert_eq!(groups.protection(GroupId::ROOT, c).min, 50);
}

#[test]
fn names_and_paths() {
    let groups = groups(1);
    for bad in ["", ".", "..", "a/b", "a\nb", &"x".repeat(65)] {
        assert_eq!(groups.create(GroupId::ROOT, bad), Err(GroupError::BadName), "{bad:?}");
    }
    let long = "y".repeat(64);
    let a = groups.create(GroupId::ROOT, &long).unwrap();
    let b = groups.create(a, "b\u{fc}").unwrap();
    assert_eq!(groups.create(a, "b\u{fc}"), Err(GroupError::Exists));
    let path = format!("/{long}/b\u{fc}");
    assert_eq!(
        (groups.find(&path), groups.find("/"), groups.find("/nobody")),
        (Some(b), Some(GroupId::ROOT), None)
    );
    assert_eq!(groups.remove(GroupId::ROOT), Err(GroupError::Root));
    let mut deep = a;
    let deepest = (0..100).find_map(|_| match groups.create(deep, "d") {
        Ok(id) => {
            deep = id;
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(deepest, Some(GroupError::TooDeep));
}
