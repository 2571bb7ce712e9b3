//! In which orders a call is tried among those of other threads.
//!
//! What began after another call's end was after it, whichever threads made them. So an order in which a call
//! passes a change passes the changes that ended before that one began, too.

use quire_trace::event::{TaskId, Window};

/// Orders that a call is tried in.
const MOST_TRIED: usize = 128;

/// A change that a call may pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<P> {
    pub(super) at: P,
    pub(super) window: Window,
    /// Whether the result of the call can depend on it.
    pub(super) matters: bool,
}

/// Changes of one thread: before which of them, or after which of them, a call may have been.
#[derive(Debug)]
pub(super) struct Course<P> {
    pub(super) task: TaskId,
    /// From the nearest to the farthest. A call that has passed one has passed those before it.
    pub(super) places: Vec<Place<P>>,
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

    fn matters(&self) -> bool {
        self.places.iter().any(|place| place.matters)
    }
}

/// The changes around a call, by their threads.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// Those that stand later, by the numbers of their events.
    pub(super) later: Vec<Course<u64>>,
    /// Those that stand earlier.
    pub(super) earlier: Vec<Course<usize>>,
    /// Windows of calls that stand earlier and were before it in each order.
    pub(super) fixed: Vec<Window>,
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

    /// The nearest order to this one that the windows allow, if there is one.
    fn allowed(mut self, around: &Around) -> Option<Self> {
        // It was before these. So it was before what began after the end of one of them.
        let earlier = || around.earlier.iter().flat_map(|course| &course.places);
        let undone = earlier().filter(|place| self.undone.contains(&place.at));
        let end = undone.map(|place| place.window.end_ns).min();
        for course in &around.earlier {
            let after = |place: &Place<usize>| end.is_some_and(|end| place.window.start_ns > end);
            let last =
                course.places.iter().rposition(|place| after(place) || self.undone.contains(&place.at));
            for place in &course.places[..last.map_or(0, |last| last + 1)] {
                if !self.undone.contains(&place.at) {
                    self.undone.push(place.at);
                }
            }
        }
        // It was after these. So it was after what ended before one of them began.
        let passed = around.later.iter().flat_map(|course| {
            course.places.iter().filter(|place| self.has(course.task, place.at)).map(|place| place.window)
        });
        let made = earlier().filter(|place| !self.undone.contains(&place.at)).map(|place| place.window);
        let start =
            passed.chain(made).chain(around.fixed.iter().copied()).map(|window| window.start_ns).max();
        for course in &around.later {
            let before = |place: &Place<u64>| start.is_some_and(|start| place.window.end_ns < start);
            if let Some(last) = course.places.iter().rfind(|place| before(place))
                && !self.has(course.task, last.at)
            {
                self.made.retain(|&(task, _)| task != course.task);
                self.made.push((course.task, last.at));
            }
        }
        self.made.sort_unstable();
        self.undone.sort_unstable();
        // What it was after may not have begun after the end of what it was before.
        let end =
            earlier().filter(|place| self.undone.contains(&place.at)).map(|place| place.window.end_ns).min();
        let contradicts = end.is_some_and(|end| start.is_some_and(|start| start > end));
        (!contradicts).then_some(self)
    }
}

/// All orders that are tried, the nearest first: past the changes of one thread, of all threads in their
/// order, and of two threads. And whether there are more.
pub(super) fn candidates(around: &Around) -> (Vec<Candidate>, bool) {
    let (later, earlier) = (&around.later, &around.earlier);
    let places = |course: &Course<u64>| -> Vec<u64> {
        course.places.iter().filter(|place| place.matters).map(|place| place.at).collect()
    };
    let passed = later.iter().flat_map(|course| {
        let made = |last: u64| Candidate { made: vec![(course.task, last)], undone: Vec::new() };
        places(course).into_iter().map(made)
    });
    let earlier: Vec<_> = earlier.iter().filter(|course| course.matters()).collect();
    let ones: Vec<(TaskId, Candidate)> = passed
        .map(|one| (one.made[0].0, one))
        .chain(earlier.iter().flat_map(|course| {
            let undone = |count| course.places[..count].iter().map(|place| place.at).collect();
            let one = move |count| Candidate { made: Vec::new(), undone: undone(count) };
            (1..=course.places.len()).map(move |count| (course.task, one(count)))
        }))
        .collect();
    let mut found: Vec<Candidate> = ones.iter().map(|(_, one)| one.clone()).collect();
    let mut numbers: Vec<u64> = later.iter().flat_map(places).collect();
    numbers.sort_unstable();
    found.extend(numbers.into_iter().map(|number| {
        let last = |course: &Course<u64>| {
            let last = places(course).into_iter().rev().find(|&place| place <= number)?;
            Some((course.task, last))
        };
        Candidate { made: later.iter().filter_map(last).collect(), undone: Vec::new() }
    }));
    let mut places: Vec<usize> =
        earlier.iter().flat_map(|course| course.places.iter().map(|place| place.at)).collect();
    places.sort_unstable_by(|one, other| other.cmp(one));
    found.extend(
        (1..=places.len()).map(|count| Candidate { made: Vec::new(), undone: places[..count].to_vec() }),
    );
    let mut more = false;
    'pairs: for (place, (task, one)) in ones.iter().enumerate() {
        for (_, other) in ones[place + 1..].iter().filter(|(other, _)| other != task) {
            if found.len() >= 2 * MOST_TRIED {
                more = true;
                break 'pairs;
            }
            let mut both = one.clone();
            both.made.extend(&other.made);
            both.undone.extend(&other.undone);
            found.push(both);
        }
    }
    let mut distinct: Vec<Candidate> = Vec::new();
    for one in found.into_iter().filter_map(|one| one.allowed(around)) {
        if distinct.contains(&one) {
            continue;
        }
        if distinct.len() == MOST_TRIED {
            more = true;
            break;
        }
        distinct.push(one);
    }
    (distinct, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes that overlap with each other.
    fn course<P>(task: u32, places: Vec<P>) -> Course<P> {
        let window = Window { start_ns: 1, end_ns: 100 };
        windows(task, places.into_iter().map(|at| (at, window)).collect())
    }

    fn windows<P>(task: u32, places: Vec<(P, Window)>) -> Course<P> {
        let place = |(at, window)| Place { at, window, matters: true };
        Course { task: TaskId(task), places: places.into_iter().map(place).collect() }
    }

    fn order(made: &[(u32, u64)], undone: &[usize]) -> Candidate {
        let made = made.iter().map(|&(task, last)| (TaskId(task), last)).collect();
        Candidate { made, undone: undone.to_vec() }
    }

    #[test]
    fn each_order_keeps_the_order_of_each_thread() {
        let (later, earlier) = (vec![course(1, vec![5, 9]), course(2, vec![7])], vec![course(3, vec![4, 2])]);
        let (found, more) = candidates(&Around { later, earlier, fixed: Vec::new() });
        let ones = [
            order(&[(1, 5)], &[]),
            order(&[(1, 9)], &[]),
            order(&[(2, 7)], &[]),
            order(&[], &[4]),
            order(&[], &[2, 4]),
        ];
        assert_eq!(found[..5], ones);
        assert!(
            found.contains(&order(&[(1, 5), (2, 7)], &[])) && found.contains(&order(&[(1, 9), (2, 7)], &[]))
        );
        assert!(found.contains(&order(&[(1, 9)], &[2, 4])) && found.contains(&order(&[(2, 7)], &[4])));
        assert!(!found.contains(&Candidate::default()) && !more);
        assert_eq!(found.len(), 5 + 2 + 6);
        assert!(found[1].has(TaskId(1), 6) && !found[1].has(TaskId(1), 10) && !found[1].has(TaskId(2), 6));
    }

    #[test]
    fn each_order_is_one_that_the_windows_allow() {
        let window = |start_ns, end_ns| Window { start_ns, end_ns };
        // The second thread's change ended before the first one's second began.
        let later = || {
            vec![
                windows(1, vec![(5, window(10, 12)), (9, window(20, 22))]),
                windows(2, vec![(7, window(11, 13))]),
            ]
        };
        let all = |later, earlier, fixed| candidates(&Around { later, earlier, fixed }).0;
        let expected = [
            order(&[(1, 5)], &[]),
            order(&[(1, 9), (2, 7)], &[]),
            order(&[(2, 7)], &[]),
            order(&[(1, 5), (2, 7)], &[]),
        ];
        assert_eq!(all(later(), Vec::new(), Vec::new()), expected);
        // Backwards, and never past what was before it in each order.
        let earlier = || vec![windows(3, vec![(4, window(2, 6))]), windows(1, vec![(3, window(7, 8))])];
        assert_eq!(all(Vec::new(), earlier(), Vec::new()), [order(&[], &[3, 4]), order(&[], &[3])]);
        assert_eq!(all(Vec::new(), earlier(), vec![window(7, 9)]), [order(&[], &[3])]);
        // After the one and before the other is possible only if they overlap.
        assert!(!all(later(), earlier(), Vec::new()).contains(&order(&[(1, 5)], &[3])));
        let long = vec![windows(3, vec![(4, window(2, 15))])];
        assert!(all(later(), long, Vec::new()).contains(&order(&[(1, 5)], &[4])));
    }

    #[test]
    fn orders_are_bounded() {
        let courses = |from: u32| (from..from + 20).map(move |task| (task, (0..64).collect::<Vec<u64>>()));
        let later: Vec<_> = courses(0).map(|(task, places)| course(task, places)).collect();
        let (found, more) = candidates(&Around { later, ..Around::default() });
        assert!(found.len() == MOST_TRIED && more);
    }
}
