//! The threads that run programs. They are reused, since starting them takes longer than a program.

use super::Side;
use super::history::{Access, Clock, Event, Outcome};
use super::program::{Call, Op, Pause, Program, Turn, Window};
use quire_arch::VirtAddr;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

/// A memory manager that programs can run on.
pub(super) trait World: Sync {
    /// Whose memory it is.
    const SIDE: Side;

    /// What a thread has for itself: its CPU.
    type Seat<'w>
    where
        Self: 'w;

    /// One address space.
    type Memory<'w>: Send + Sync
    where
        Self: 'w;

    /// The seat of thread `number`. Called once by each thread.
    fn seat(&self, number: usize) -> Self::Seat<'_>;

    /// A new, empty address space.
    fn open(&self) -> Self::Memory<'_>;

    /// Calls `work` with the calling thread's hands on `memory`.
    fn with_hands(seat: &Self::Seat<'_>, memory: &Self::Memory<'_>, work: &mut dyn FnMut(&mut dyn Hands));

    /// Ends the address space when every thread has dropped it, and says what is wrong then.
    fn close(&self, memory: Self::Memory<'_>) -> Vec<String>;

    /// Drops the world after a thread has panicked, or the audit has found something.
    fn abandon(self);
}

/// A thread's way to the memory.
pub(super) trait Hands {
    /// Reads a word.
    fn read(&mut self, addr: VirtAddr) -> Result<Access<u64>, String>;

    /// Writes a word.
    fn write(&mut self, addr: VirtAddr, word: u64) -> Result<Access<()>, String>;

    /// Makes a call, and returns what Linux's does; `None` if there is no such call.
    fn call(&mut self, call: Call) -> Option<i64>;

    /// Forks a child, calls `forked`, and then asks the child what it sees in `window`.
    fn fork(&mut self, window: Window, forked: &mut dyn FnMut()) -> Outcome;

    /// Lets one turn of waiting pass.
    fn idle(&mut self) {
        core::hint::spin_loop();
    }
}

/// Makes one operation. The outcome comes with the stamps before and after it; a fork is over when the child
/// exists.
fn perform(hands: &mut dyn Hands, window: Window, op: Op, clock: &Clock) -> (u64, u64, Outcome) {
    let begin = clock.stamp();
    match op {
        Op::Read { page } => {
            let read = hands.read(window.addr(page));
            (begin, clock.stamp(), Outcome::of_access(read, |word| Outcome::Word(window.decode(word))))
        }
        Op::Write { page, value } => {
            let written = hands.write(window.addr(page), window.word(value));
            (begin, clock.stamp(), Outcome::of_access(written, |()| Outcome::Done))
        }
        Op::Fork => {
            let mut end = begin;
            let outcome = hands.fork(window, &mut || end = clock.stamp());
            (begin, end, outcome)
        }
        _ => {
            let made = window.call(op).and_then(|call| Some((hands.call(call)?, call.result)));
            let end = clock.stamp();
            let unknown = || Outcome::Strange("no such call".to_owned());
            (begin, end, made.map_or_else(unknown, |(returned, success)| Outcome::of_call(returned, success)))
        }
    }
}

/// What was wrong with a program's run as such. The world must not be used any more.
#[derive(Debug)]
pub(super) struct Breakdown {
    /// What threads said when they panicked, or what was wrong afterwards.
    pub(super) messages: Vec<String>,
    /// What happened until then.
    pub(super) events: Vec<Event>,
}

fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program in progress.
struct InProgress<M> {
    program: Program,
    memory: M,
    clock: Clock,
}

/// Threads that wait for programs.
pub(super) struct Crew<'c, 'w, W: World> {
    world: &'w W,
    seat: W::Seat<'w>,
    shared: &'c CrewState<W::Memory<'w>>,
}

struct CrewState<M> {
    job: RwLock<Option<InProgress<M>>>,
    begin: Barrier,
    /// Just before the first operation.
    ready: Barrier,
    /// Threads that are on their way to their first operation, of this job and all jobs before.
    starting: AtomicUsize,
    end: Barrier,
    over: AtomicBool,
    /// Programs that were begun and that were ended: the watch looks at them.
    begun: AtomicUsize,
    ended: AtomicUsize,
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    events: Vec<Event>,
    panics: Vec<String>,
}

/// Calls `work` with a crew of `threads` threads in `world`, of which the caller is one. Ends the process
/// with a message if a program does not end within `patience`: a thread that hangs in the machine cannot be
/// stopped.
pub(super) fn with<'w, W: World, R>(
    world: &'w W,
    threads: usize,
    patience: Duration,
    work: impl FnOnce(&mut Crew<'_, 'w, W>) -> R,
) -> R {
    let shared = CrewState {
        job: RwLock::new(None),
        begin: Barrier::new(threads),
        ready: Barrier::new(threads),
        starting: AtomicUsize::new(0),
        end: Barrier::new(threads),
        over: AtomicBool::new(false),
        begun: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
        done: Mutex::default(),
    };
    /// Releases the other threads, also when the caller panics.
    struct Dismiss<'s, M>(&'s CrewState<M>, thread::Thread);
    impl<M> Drop for Dismiss<'_, M> {
        fn drop(&mut self) {
            self.0.over.store(true, Ordering::Relaxed);
            self.0.begin.wait();
            self.1.unpark();
        }
    }
    thread::scope(|scope| {
        let shared = &shared;
        for number in 1..threads {
            scope.spawn(move || {
                let seat = world.seat(number);
                loop {
                    shared.begin.wait();
                    if shared.over.load(Ordering::Relaxed) {
                        return;
                    }
                    shared.take_part::<W>(&seat, number);
                    shared.end.wait();
                }
            });
        }
        let watch = scope.spawn(move || shared.watch(patience));
        let _dismiss = Dismiss(shared, watch.thread().clone());
        work(&mut Crew { world, seat: world.seat(0), shared })
    })
}

impl<M: Send + Sync> CrewState<M> {
    /// Runs thread `number`'s part of the job.
    fn take_part<'w, W: World<Memory<'w> = M> + 'w>(&self, seat: &W::Seat<'w>, number: usize) {
        let job = self.job.read().unwrap_or_else(PoisonError::into_inner);
        let Some(job) = &*job else { return };
        let threads = &job.program.threads;
        self.perform::<W>(seat, job, number, &threads[number], || self.start_together(threads.len()));
    }

    /// Waits for the other threads, and then a little longer until they are on a CPU: a thread that slept
    /// needs longer to wake up than a short program takes. Not for ever, since there may be too few CPUs.
    fn start_together(&self, threads: usize) {
        const SPINS: u32 = 5000;
        self.ready.wait();
        let mine = self.starting.fetch_add(1, Ordering::Relaxed);
        let all = mine - mine % threads + threads;
        for _ in 0..SPINS {
            if self.starting.load(Ordering::Relaxed) >= all {
                break;
            }
            core::hint::spin_loop();
        }
    }

    /// Makes the operations of `steps`, the first one after `start`, and records their outcomes.
    fn perform<'w, W: World<Memory<'w> = M> + 'w>(
        &self,
        seat: &W::Seat<'w>,
        job: &InProgress<M>,
        number: usize,
        steps: &[Turn],
        start: impl Fn(),
    ) {
        let mut events = Vec::with_capacity(steps.len());
        let result = catch_unwind(AssertUnwindSafe(|| {
            let window = job.program.window();
            W::with_hands(seat, &job.memory, &mut |hands| {
                start();
                for &Turn { pause, op } in steps {
                    match pause {
                        Pause::Turns(turns) => (0..turns).for_each(|_| hands.idle()),
                        Pause::Yield => thread::yield_now(),
                    }
                    let (begin, end, outcome) = perform(hands, window, op, &job.clock);
                    events.push(Event { thread: number as u8, op, begin, end, outcome });
                }
            });
        }));
        let mut done = hold(&self.done);
        done.events.extend(events);
        if let Err(payload) = result {
            done.panics.push(format!("thread {number} panicked: {}", text_of(&*payload)));
        }
    }

    /// Ends the process when a program does not end.
    fn watch(&self, patience: Duration) {
        let look = || (self.begun.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed));
        let mut before = look();
        while !self.over.load(Ordering::Relaxed) {
            // Woken early only at the end, or for nothing: then one look comes too soon, and a second one
            // follows.
            thread::park_timeout(patience / 2);
            let now = look();
            if now.0 != now.1 && now == before && !self.over.load(Ordering::Relaxed) {
                thread::park_timeout(patience / 2);
                if look() == now {
                    if let Ok(job) = self.job.try_read()
                        && let Some(job) = &*job
                    {
                        eprintln!("a program hangs:\n{}", job.program);
                    }
                    std::process::abort();
                }
            }
            before = now;
        }
    }
}

/// What a panic said.
fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("(no text)").to_owned()
}

impl<W: World> Crew<'_, '_, W> {
    /// Runs a program in an address space of its own, and returns what happened in the order in which it
    /// began.
    pub(super) fn run(&mut self, program: &Program) -> Result<Vec<Event>, Breakdown> {
        let shared = self.shared;
        let job = InProgress { program: program.clone(), memory: self.world.open(), clock: Clock::default() };
        shared.begun.fetch_add(1, Ordering::Relaxed);
        *shared.job.write().unwrap_or_else(PoisonError::into_inner) = Some(job);
        if self.alone(program.setup.iter().copied()) {
            shared.begin.wait();
            shared.take_part::<W>(&self.seat, 0);
            shared.end.wait();
            self.alone(program.closing());
        }

        let Done { mut events, panics } = std::mem::take(&mut *hold(&shared.done));
        events.sort_by_key(|event| event.begin);
        let job = shared.job.write().unwrap_or_else(PoisonError::into_inner).take();
        let result = match job {
            Some(job) if panics.is_empty() => {
                let messages = self.world.close(job.memory);
                if messages.is_empty() { Ok(events) } else { Err(Breakdown { messages, events }) }
            }
            job => {
                // Whatever the thread that panicked held, it holds for ever.
                std::mem::forget(job);
                Err(Breakdown { messages: panics, events })
            }
        };
        shared.ended.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Makes operations while no other thread makes any, unless a thread has panicked. Returns whether none
    /// has.
    fn alone(&self, ops: impl Iterator<Item = Op>) -> bool {
        let shared = self.shared;
        let job = shared.job.read().unwrap_or_else(PoisonError::into_inner);
        let sound = || hold(&shared.done).panics.is_empty();
        if let Some(job) = job.as_ref().filter(|_| sound()) {
            let steps: Vec<Turn> = ops.map(|op| Turn { pause: Pause::Turns(0), op }).collect();
            shared.perform::<W>(&self.seat, job, 0, &steps, || ());
        }
        sound()
    }
}
