//! In which orders a call is tried among those of other threads.

use crate::event::TaskId;

/// Orders that a call is tried in.
const MOST_TRIED: usize = 128;

/// Changes of one thread: before which of them, or after which of them, a call may have been.
#[derive(Debug)]
pub(super) struct Course<P> {
    pub(super) task: TaskId,
    /// From the nearest to the farthest. A call that has passed one has passed those before it.
    pub(super) places: Vec<P>,
}

impl<P> Course<P> {
    /// That of `task` among `courses`.
    pub(super) fn of(courses: &mut Vec<Self>, task: TaskId) -> &mut Self {
        let place = courses.iter().position(|course| course.task == task).unwrap_or_else(|| {
            courses.push(Self { task, places: Vec::new() });
            courses.len() - 1
        });
        &mut courses[place]
    }
}

/// An order: what a call passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Threads whose events up to this number are made before the call.
    pub(super) made: Vec<(TaskId, u64)>,
    /// Places of changes that the call was before.
    pub(super) undone: Vec<usize>,
}

impl Candidate {
    /// Whether the event of this number is made before the call.
    pub(super) fn has(&self, task: TaskId, number: u64) -> bool {
        self.made.iter().any(|&(of, last)| of == task && number <= last)
    }
}

/// All orders that are tried, the nearest first: past the changes of one thread, of all threads in their
/// order, and of two threads.
pub(super) fn candidates(later: &[Course<u64>], earlier: &[Course<usize>]) -> Vec<Candidate> {
    let passed = later.iter().flat_map(|course| {
        let made = |&last: &u64| Candidate { made: vec![(course.task, last)], undone: Vec::new() };
        course.places.iter().map(made)
    });
    let ones: Vec<(TaskId, Candidate)> = passed
        .map(|one| (one.made[0].0, one))
        .chain(earlier.iter().flat_map(|course| {
            let undone = |count| course.places[..count].to_vec();
            let one = move |count| Candidate { made: Vec::new(), undone: undone(count) };
            (1..=course.places.len()).map(move |count| (course.task, one(count)))
        }))
        .collect();
    let mut found: Vec<Candidate> = ones.iter().map(|(_, one)| one.clone()).collect();
    let mut numbers: Vec<u64> = later.iter().flat_map(|course| course.places.iter().copied()).collect();
    numbers.sort_unstable();
    found.extend(numbers.into_iter().map(|number| {
        let last = |course: &Course<u64>| {
            let last = course.places.iter().rev().find(|&&place| place <= number)?;
            Some((course.task, *last))
        };
        Candidate { made: later.iter().filter_map(last).collect(), undone: Vec::new() }
    }));
    let mut places: Vec<usize> = earlier.iter().flat_map(|course| course.places.iter().copied()).collect();
    places.sort_unstable_by(|one, other| other.cmp(one));
    found.extend(
        (1..=places.len()).map(|count| Candidate { made: Vec::new(), undone: places[..count].to_vec() }),
    );
    for (place, (task, one)) in ones.iter().enumerate() {
        for (_, other) in ones[place + 1..].iter().filter(|(other, _)| other != task) {
            if found.len() >= 2 * MOST_TRIED {
                break;
            }
            let mut both = one.clone();
            both.made.extend(&other.made);
            both.undone.extend(&other.undone);
            found.push(both);
        }
    }
    let mut distinct: Vec<Candidate> = Vec::new();
    for mut one in found {
        one.made.sort_unstable();
        one.undone.sort_unstable();
        if !distinct.contains(&one) {
            distinct.push(one);
        }
        if distinct.len() == MOST_TRIED {
            break;
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course<P>(task: u32, places: Vec<P>) -> Course<P> {
        Course { task: TaskId(task), places }
    }

    #[test]
    fn each_order_keeps_the_order_of_each_thread() {
        let found = candidates(&[course(1, vec![5, 9]), course(2, vec![7])], &[course(3, vec![4, 2])]);
        let made = |made: &[(u32, u64)], undone: &[usize]| Candidate {
            made: made.iter().map(|&(task, last)| (TaskId(task), last)).collect(),
            undone: undone.to_vec(),
        };
        let ones = [
            made(&[(1, 5)], &[]),
            made(&[(1, 9)], &[]),
            made(&[(2, 7)], &[]),
            made(&[], &[4]),
            made(&[], &[2, 4]),
        ];
        assert_eq!(found[..5], ones);
        assert!(
            found.contains(&made(&[(1, 5), (2, 7)], &[])) && found.contains(&made(&[(1, 9), (2, 7)], &[]))
        );
        assert!(found.contains(&made(&[(1, 9)], &[2, 4])) && found.contains(&made(&[(2, 7)], &[4])));
        assert!(!found.contains(&Candidate::default()));
        assert_eq!(found.len(), 5 + 2 + 6);
        assert!(found[1].has(TaskId(1), 6) && !found[1].has(TaskId(1), 10) && !found[1].has(TaskId(2), 6));
    }

    #[test]
    fn orders_are_bounded() {
        let courses = |from: u32| (from..from + 20).map(move |task| (task, (0..64).collect::<Vec<u64>>()));
        let later: Vec<_> = courses(0).map(|(task, places)| course(task, places)).collect();
        assert_eq!(candidates(&later, &[]).len(), MOST_TRIED);
    }
}
