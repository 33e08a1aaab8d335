//! Compares getting and dropping a pooled buffer with the C allocator, and with a free list under a lock.
//!
//! `cargo bench -p ringfile --bench pool` prints a Markdown table. In each round all contenders run in turn, so that a
//! slow moment of the machine hits all of them; the pool runs twice in each round, and the ratio of the two (A/A) shows
//! the noise. Each buffer's first byte is written. The pool's own counts are checked against the number of pairs.

use std::hint::black_box;
use std::ptr;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use ringfile_buffer::Pool;

const ROUNDS: usize = 9;
/// Pairs of a get and a drop that one thread makes in one round.
const PAIRS: u32 = 400_000;
/// The number of pairs that run before the clock starts.
const WARM_UP: u32 = 20_000;

struct Contender {
    name: &'static str,
    /// Runs a number of pairs of a size on the calling thread.
    run: Box<dyn Fn(u32) + Sync>,
}

fn main() {
    // Cargo passes `--bench`; with `--test` (cargo test --benches), one short round shows that the benchmark runs.
    let rounds = if std::env::args().any(|arg| arg == "--test") { 1 } else { ROUNDS };
    println!("| size | threads | what | ns for a pair: median [min..max] | pool / this: median [min..max] |");
    println!("|---|---|---|---|---|");
    for size in [4 << 10, 64 << 10] {
        for threads in [1, 2] {
            compare(size, threads, rounds);
        }
    }
}

fn compare(size: usize, threads: usize, rounds: usize) {
    let pool = Pool::new(64 << 20);
    let contenders = contenders(&pool, size);
    let mut results = vec![Vec::new(); contenders.len()];
    for round in 0..rounds {
        // Rounds start alternately from either end, so that no contender is always the first.
        let mut order: Vec<_> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            results[at].push(time(&contenders[at], threads));
        }
    }
    let metrics = pool.metrics();
    let pairs = 2 * (rounds * threads) as u64 * u64::from(PAIRS + WARM_UP);
    let class = metrics.classes.iter().find(|class| class.size == size).expect("the pool was used");
    assert_eq!((class.gets, class.returns, class.in_use), (pairs, pairs, 0), "not all pairs were done");
    for (contender, times) in contenders.iter().zip(&results) {
        let ratios = results[0].iter().zip(times).map(|(pool, other)| pool / other).collect();
        let (time, ratio) = (spread(times.clone(), 1), spread(ratios, 2));
        println!("| {} KiB | {threads} | {} | {time} | {ratio} |", size >> 10, contender.name);
    }
    println!(
        "| {} KiB | {threads} | (the pool took its lock {} times in {pairs} pairs) | | |",
        size >> 10,
        metrics.misses
    );
}

fn contenders(pool: &Pool, size: usize) -> Vec<Contender> {
    let pooled = |name| {
        let pool = pool.clone();
        let run = move |pairs| {
            for pair in 0..pairs {
                let mut buffer = pool.get(size).expect("the pool is not full");
                touch(buffer.as_mut_ptr(), pair);
                drop(black_box(buffer));
            }
        };
        Contender { name, run: Box::new(run) }
    };
    let c = move |pairs| {
        for pair in 0..pairs {
            let mut memory = ptr::null_mut();
            // SAFETY: the arguments are valid; the returned memory is freed once.
            unsafe {
                assert_eq!(libc::posix_memalign(&mut memory, 4096, size), 0);
                touch(memory.cast(), pair);
                libc::free(black_box(memory));
            }
        }
    };
    let free: Mutex<Vec<Box<[u8]>>> = Mutex::default();
    let locked = move |pairs| {
        for pair in 0..pairs {
            let taken = free.lock().expect("nobody panics").pop();
            let mut buffer = taken.unwrap_or_else(|| vec![0; size].into());
            touch(buffer.as_mut_ptr(), pair);
            free.lock().expect("nobody panics").push(black_box(buffer));
        }
    };
    vec![
        pooled("pool: get, drop"),
        pooled("the same again (A/A)"),
        Contender { name: "posix_memalign, free", run: Box::new(c) },
        Contender { name: "`Mutex<Vec<Box<[u8]>>>`: pop, push", run: Box::new(locked) },
    ]
}

fn touch(first: *mut u8, pair: u32) {
    // SAFETY: the first byte of a buffer that the caller owns.
    unsafe { first.write_volatile(pair as u8) }
}

/// Returns nanoseconds per pair; with several threads, those of the slowest one, since each makes its own pairs.
fn time(contender: &Contender, threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let one = || {
        (contender.run)(WARM_UP);
        start.wait();
        let began = Instant::now();
        (contender.run)(PAIRS);
        began.elapsed().as_nanos() as f64 / f64::from(PAIRS)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).fold(0.0, f64::max)
    })
}

fn spread(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let (min, max) = (values[0], values[values.len() - 1]);
    format!("{:.digits$} [{min:.digits$}..{max:.digits$}]", values[values.len() / 2])
}
