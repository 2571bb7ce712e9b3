//! Parallel jobs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Called with how many replays are done, of how many.
pub type Progress<'p> = &'p (dyn Fn(usize, usize) + Sync);

/// Does `work` for each of `jobs`, so many at once; the outcomes are in their order. After an error no more
/// work is begun.
pub(crate) fn in_parallel<J: Sync, R: Send, E: Send>(
    jobs: &[J],
    at_once: usize,
    progress: Progress<'_>,
    work: impl Fn(&J) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes: Mutex<Vec<Option<Result<R, E>>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    progress(0, jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some((place, job)) = take(&next, jobs) {
                    let outcome = work(job);
                    if outcome.is_err() {
                        // The rest would be useless.
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes[place] = Some(outcome);
                    }
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_default();
    outcomes.into_iter().flatten().collect()
}

fn take<'j, J>(next: &AtomicUsize, jobs: &'j [J]) -> Option<(usize, &'j J)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, jobs.get(place)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_in_the_order_of_the_jobs_and_an_error_is_told() {
        let jobs: Vec<u32> = (0..100).collect();
        let doubled = in_parallel(&jobs, 3, &|_, _| {}, |&job| Ok::<_, ()>(2 * job));
        assert_eq!(doubled, Ok(jobs.iter().map(|job| 2 * job).collect()));
        let failed = in_parallel(&jobs, 3, &|_, _| {}, |&job| if job == 50 { Err(job) } else { Ok(job) });
        assert_eq!(failed, Err(50));
        assert_eq!(in_parallel(&[], 3, &|_, _| {}, |&job: &u32| Ok::<_, ()>(job)), Ok(vec![]));
    }
}
