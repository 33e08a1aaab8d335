//! How to test storage code on simulated disks: `cargo run --release --features sim --example tested_store`.
//!
//! The code under test, [`store`], knows nothing of the simulation: `tested_store --real FOLDER` runs it on a real disk. Here
//! are its test, and three bugs that this finds; the program says how soon.

#[path = "tested_store/store.rs"]
mod store;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use futures::lock::Mutex;
use ringfile::sim::{Faults, Simulation, for_each_seed};
use ringfile::{OpenOptions, fs};
use store::{Bug, Pairs, Store};

/// Cuts the power somewhere, and looks what is left.
fn first_test() {
    use ringfile::OpenOptions;
    use ringfile::sim::{Simulation, for_each_seed};

    for_each_seed(0..1000, |seed| {
        let outcome = Simulation::new(seed).power_cuts(true).run(|_| replace("config", "new"));
        let is_done = matches!(outcome.result(), Some(Ok(())));
        outcome.disk().run(|_| async move {
            match OpenOptions::new().read(true).open("config").await {
                Ok(file) => assert_eq!(file.read_at(vec![0; 100], 0).await.expect("no faults"), b"new"),
                Err(_) => assert!(!is_done, "it was reported as done"),
            }
        });
    });
}

/// Writes a new file, and gives it the name of the old one.
async fn replace(path: &str, content: &'static str) -> Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open("new").await?;
    file.write_at(content.as_bytes(), 0).await?;
    file.sync_all().await?; // without this line, some seed finds an empty file
    fs::rename("new", path).await?;
    fs::sync_dir(".").await?; // without this line, some seed finds none
    Ok(())
}

/// What the store was told, and what it has promised: kept outside of the simulation, which a power cut ends.
#[derive(Default)]
struct History {
    transactions: Vec<Pairs>,
    acknowledged: usize,
}

impl History {
    /// Fails unless recovery has found all acknowledged transactions, and the first few of the others.
    fn check(&mut self, found: &BTreeMap<u64, u64>) -> Result<()> {
        let mut state = BTreeMap::new();
        for count in 0..=self.transactions.len() {
            if count >= self.acknowledged && state == *found {
                self.transactions.truncate(count);
                self.acknowledged = count;
                return Ok(());
            }
            state.extend(
                self.transactions.get(count).into_iter().flatten().map(|pair| <(u64, u64)>::from(*pair)),
            );
        }
        Err(Error::other("what was found is no state that the store was in"))
    }
}

type Shared = Rc<RefCell<History>>;
type Random = Rc<dyn Fn(u64) -> u64>;

/// Opens the store, checks what is in it, and makes transactions in three tasks.
async fn session(folder: &Path, bug: Option<Bug>, history: Shared, random: Random) -> Result<()> {
    let store = Store::open(folder, bug).await?;
    history.borrow_mut().check(&store.pairs())?;
    let store = Rc::new(Mutex::new(store));
    let tasks = (0..3).map(|_| {
        let (store, history, random) = (Rc::clone(&store), Rc::clone(&history), Rc::clone(&random));
        ringfile::spawn(async move {
            for _ in 0..20 {
                let pairs: Pairs = (0..=random(3)).map(|_| [random(100), random(1 << 29)]).collect();
                let mut store = store.lock().await;
                history.borrow_mut().transactions.push(pairs.clone());
                store.commit(&pairs).await?;
                let mut history = history.borrow_mut();
                history.acknowledged = history.transactions.len();
            }
            Result::Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}

/// Makes three sessions, with faults in half of the runs, and cuts the power in the first and the last. Each checks what the
/// one before has left.
fn survives(seed: u64, bug: Option<Bug>) -> Result<()> {
    let history = Shared::default();
    let faults = if seed.is_multiple_of(2) { Faults::none() } else { Faults::everything() };
    let mut simulation = Simulation::new(seed);
    for cut_within in [500, 0, 500] {
        let outcome = simulation.faults(faults.clone()).power_cut_within(cut_within).run(|disk| {
            session(Path::new("."), bug, history.clone(), Rc::new(move |limit| disk.random_below(limit)))
        });
        simulation = outcome.disk(); // an error may have been a fault; if it was not, it comes again
    }
    let outcome = simulation.run(|_| session(Path::new("."), bug, history, Rc::new(|limit| limit / 2)));
    outcome.into_result().expect("the power is not cut")
}

fn main() -> Result<()> {
    let began = Instant::now();
    if let [_, flag, folder] = &std::env::args().collect::<Vec<_>>()[..]
        && flag == "--real"
    {
        let random: Random = Rc::new(move |limit| u64::from(began.elapsed().subsec_nanos()) % limit);
        let (folder, history) = (Path::new(folder), Shared::default());
        return ringfile::block_on(async {
            let before = Store::open(folder, None).await?.pairs();
            history.borrow_mut().transactions.push(before.into_iter().map(<[u64; 2]>::from).collect());
            session(folder, None, history.clone(), random.clone()).await?;
            session(folder, None, history, random).await // checks what the first has left
        });
    }
    first_test();
    for_each_seed(0..3000, |seed| survives(seed, None).expect("a promise is broken"));
    println!("no bug: 3000 seeds find nothing, in {} ms", began.elapsed().as_millis());
    for bug in [Bug::AcknowledgesBeforeSync, Bug::LogsNoPages, Bug::EmptiesLogTooEarly] {
        let began = Instant::now();
        let found = (0..3000).find_map(|seed| Some((seed, survives(seed, Some(bug)).err()?)));
        let (seed, error) = found.expect("the test finds each bug");
        let took = began.elapsed().as_millis();
        println!("{bug:?}: seed {seed} finds it ({} seeds, {took} ms): {error}", seed + 1);
    }
    Ok(())
}
