//! Histories of a model with a single thread: as they are, with operations that take longer, and spoilt.

use super::super::super::generate;
use super::super::super::history::{ChildPage, Event, Outcome, Refusal};
use super::super::super::program::{Op, Rights, Span, Word};
use super::super::HistoryVerdict;
use super::{ACCERR, EFAULT, EINVAL, ENOMEM, MAPERR, at, check, value};
use Outcome::Done;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;

/// One thread's space: protection, lock and value of each page.
#[derive(Default)]
struct Model(BTreeMap<u8, (Rights, bool, u8)>);

impl Model {
    /// Up to the first page that is not mapped.
    fn change(&mut self, span: Span, change: impl Fn(&mut (Rights, bool, u8))) -> Outcome {
        for page in span.pages() {
            match self.0.get_mut(&page) {
                Some(page) => change(page),
                None => return ENOMEM,
            }
        }
        Done
    }

    fn access(&mut self, page: u8, write: Option<u8>) -> Outcome {
        match self.0.get_mut(&page) {
            None => MAPERR,
            Some((rights, ..)) if !rights.allow(write.is_some()) => ACCERR,
            Some((_, _, held)) => match write {
                Some(new) => {
                    *held = new;
                    Done
                }
                None => value(*held),
            },
        }
    }

    fn make(&mut self, op: Op) -> Outcome {
        match op {
            Op::Read { page } => self.access(page, None),
            Op::Write { page, value } => self.access(page, Some(value)),
            Op::Map { span, rights, .. } => {
                self.0.extend(span.pages().map(|page| (page, (rights, false, 0))));
                Done
            }
            Op::Unmap { span } => {
                self.0.retain(|page, _| !span.pages().contains(page));
                Done
            }
            Op::Protect { span, rights } => self.change(span, |page| page.0 = rights),
            Op::Unlock { span } => self.change(span, |page| page.1 = false),
            Op::Lock { span } => match self.change(span, |page| page.1 = true) {
                Done if span.pages().any(|page| self.0[&page].0 == Rights::None) => ENOMEM,
                other => other,
            },
            Op::Drop { span } => {
                let mut outcome = Done;
                for page in span.pages() {
                    match self.0.get_mut(&page) {
                        Some((_, true, _)) => return EINVAL,
                        Some((_, _, held)) => *held = 0,
                        None => outcome = ENOMEM,
                    }
                }
                outcome
            }
            Op::Populate { span, write } => {
                for page in span.pages() {
                    match self.0.get(&page) {
                        Some((rights, ..)) if rights.allow(write) => {}
                        Some(_) => return EINVAL,
                        None => return ENOMEM,
                    }
                }
                Done
            }
            Op::Move { from, to } if from.overlaps(Op::target(from, to)) => EINVAL,
            Op::Move { from, .. } if !self.0.contains_key(&from.first) => EFAULT,
            Op::Move { from, to } => {
                for (page, to) in from.pages().zip(to..) {
                    if let Some(moved) = self.0.remove(&page) {
                        self.0.insert(to, moved);
                    }
                }
                Done
            }
            Op::Fork => {
                let page = |page| ChildPage {
                    read: match self.0.get(&page) {
                        None => Err(Refusal::NotMapped),
                        Some((Rights::None, ..)) => Err(Refusal::Denied),
                        Some((_, _, 0)) => Ok(Word::Zero),
                        Some((_, _, value)) => Ok(Word::Written(*value)),
                    },
                    write: match self.0.get(&page) {
                        None => Err(Refusal::NotMapped),
                        Some((Rights::Write, ..)) => Ok(()),
                        Some(_) => Err(Refusal::Denied),
                    },
                };
                Outcome::Child((0..16).map(page).collect())
            }
        }
    }
}

/// Program `number`'s operations one after the other, as the model makes them.
fn model_history(number: u64) -> Vec<Event> {
    let program = generate::program(11, number, 3);
    let mut model = Model::default();
    let mut events = Vec::new();
    let mut add = |thread, op| {
        let stamp = 2 * events.len() as u64;
        events.push(at(thread, (stamp, stamp + 1), op, model.make(op)));
    };
    program.setup.iter().for_each(|&op| add(0, op));
    for turn in 0.. {
        let mut ops =
            (0..).zip(&program.threads).filter_map(|(thread, steps)| Some((thread, steps.get(turn)?.op)));
        let Some(first) = ops.next() else { break };
        std::iter::once(first).chain(ops).for_each(|(thread, op)| add(thread, op));
    }
    program.closing().for_each(|op| add(0, op));
    events
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_one_thread_does_is_right(number in 0_u64..1 << 40) {
        prop_assert_eq!(check(&model_history(number)), HistoryVerdict::Right);
    }

    /// Operations that take longer allow more, never less.
    #[test]
    fn it_stays_right_when_operations_take_longer(number in 0_u64..1 << 40, reach in 1_u64..6) {
        let mut events = model_history(number);
        let mut last = [0; 4];
        for event in &mut events {
            let last = &mut last[usize::from(event.thread)];
            event.begin = (10 * event.begin).saturating_sub(10 * reach + u64::from(event.thread)).max(*last);
            event.end = 10 * event.end + u64::from(event.thread);
            *last = event.end + 1;
        }
        prop_assert_eq!(check(&events), HistoryVerdict::Right);
    }

    /// A word that was read becomes another one. That is always wrong in a history without concurrency.
    #[test]
    fn another_word_is_wrong(
        number in 0_u64..1 << 40,
        which in any::<prop::sample::Index>(),
        other in 0_u8..5,
    ) {
        let mut events = model_history(number);
        let reads: Vec<usize> =
            (0..events.len()).filter(|&event| matches!(events[event].outcome, Outcome::Word(_))).collect();
        prop_assume!(!reads.is_empty());
        let event = &mut events[*which.get(&reads)];
        let new = value(other);
        prop_assume!(event.outcome != new);
        event.outcome = new;
        prop_assert!(matches!(check(&events), HistoryVerdict::Wrong(_)));
    }

    /// So is an access that is refused, or is not, against what it was.
    #[test]
    fn another_refusal_is_wrong(
        number in 0_u64..1 << 40,
        which in any::<prop::sample::Index>(),
        other in 0..3,
    ) {
        let mut events = model_history(number);
        let accesses: Vec<usize> =
            (0..events.len()).filter(|&event| events[event].op.accessed().is_some()).collect();
        let event = &mut events[*which.get(&accesses)];
        let new = match (other, event.op) {
            (0, _) => MAPERR,
            (1, _) => ACCERR,
            (_, Op::Read { .. }) => value(0),
            _ => Done,
        };
        prop_assume!(event.outcome != new && !(other == 2 && matches!(event.outcome, Outcome::Word(_))));
        event.outcome = new;
        prop_assert!(matches!(check(&events), HistoryVerdict::Wrong(_)));
    }
}
