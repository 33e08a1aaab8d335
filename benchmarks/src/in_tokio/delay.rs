//! How late a read ends whose thread computes meanwhile: it has submitted the read, and makes no system call.

use std::future::{Future, IntoFuture};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use ringfile::{File, Pool};
use ringfile_cli::shared::Table;
use tokio::runtime::Builder;

use crate::job::Job;

const READS: u64 = 400;

/// Notes when a read's waker was called.
struct Woken {
    began: Instant,
    after_ns: AtomicU64,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let ns = self.began.elapsed().as_nanos() as u64;
        let _ = self.after_ns.compare_exchange(0, ns, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Reads alone in a runtime of two workers, and prints when each read's waker was called, for each number of workers that
/// compute meanwhile.
pub fn compare(job: &Job) -> io::Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let pool = Pool::new(8 << 20);
    println!(
        "\n### How late the end of one read is seen (attach_to_tokio, 2 workers, O_DIRECT): {}\n",
        job.path.display()
    );
    let mut table =
        Table::default().text("while").number("reads").number("median µs").number("p99").number("max");
    let file: File = ringfile::OpenOptions::new()
        .read(true)
        .direct(true)
        .open_blocking(&job.path)
        .map_err(io::Error::from)?;
    runtime.block_on(async {
        ringfile::attach_to_tokio().map_err(io::Error::from)?;
        for (what, computing) in
            [("no worker computes", 0), ("its worker computes", 1), ("both workers compute", 2)]
        {
            let mut delays = Vec::new();
            for at in 0..READS {
                let task = one(file.clone(), pool.clone(), at * 4096 % job.size, computing);
                if let Some(delay) = tokio::spawn(task).await? {
                    delays.push(delay);
                }
            }
            delays.sort_unstable();
            let at = |part: f64| {
                format!("{:.0}", delays[((delays.len() - 1) as f64 * part) as usize] as f64 / 1e3)
            };
            if delays.is_empty() {
                return Err(io::Error::other("no read had to wait: give a file on a drive"));
            }
            table.row(vec![what.into(), delays.len().to_string(), at(0.5), at(0.99), at(1.0)]);
        }
        io::Result::Ok(())
    })?;
    print!("{table}");
    Ok(())
}

/// Returns after how many nanoseconds the waker of a read was called; `None` if the read had ended at the first poll.
async fn one(file: File, pool: Pool, offset: u64, computing: u32) -> Option<u64> {
    let is_over = Arc::new(AtomicBool::new(false));
    if computing > 1 {
        occupy_another_worker(&is_over);
    }
    let mut read = pin!(file.read_at(pool.get(4096).ok()?, offset).into_future());
    let woken = Arc::new(Woken { began: Instant::now(), after_ns: AtomicU64::new(0) });
    let waker = Waker::from(Arc::clone(&woken));
    let polled = read.as_mut().poll(&mut Context::from_waker(&waker));
    let after = || woken.after_ns.load(Ordering::Relaxed);
    if polled.is_pending() && computing > 0 {
        // No system call, but for a read that is never seen to end.
        while after() == 0 && woken.began.elapsed() < Duration::from_secs(5) {
            std::hint::spin_loop();
        }
    } else if polled.is_pending() {
        while after() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    if polled.is_ready() {
        return None;
    }
    let read = read.await.ok()?;
    assert_eq!(read.len(), 4096, "the whole block was read");
    Some(after())
}

/// Lets another worker compute until `is_over`, and returns when it does.
fn occupy_another_worker(is_over: &Arc<AtomicBool>) {
    let (is_over, has_begun) = (Arc::clone(is_over), Arc::new(AtomicBool::new(false)));
    let begun = Arc::clone(&has_begun);
    let computes = async move {
        begun.store(true, Ordering::Relaxed);
        while !is_over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    // From a thread outside the runtime: this worker would keep a task of its own for itself.
    let runtime = tokio::runtime::Handle::current();
    let _ = std::thread::spawn(move || drop(runtime.spawn(computes))).join();
    while !has_begun.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}
