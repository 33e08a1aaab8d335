//! The benchmark: each query with every store in turn, with caches empty and full.
//!
//! Each query runs in a separate process, so that its memory can be measured. It sends its figures to its parent as
//! lines of text.

mod group;
mod report;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use datafusion::prelude::SessionContext;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};

use self::group::MemoryGroup;
use crate::rows::Rows;
use crate::side::{self, Side};
use crate::tpch::Data;
use crate::usage::{Meter, Usage};
use crate::{tables, tpch};

/// The arguments that select what is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// The data and the queries.
    #[command(flatten)]
    pub data: Data,
    /// Rounds; each measures all stores in turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Run each query in a memory control group (version 1), limited to its peak memory plus a quarter of the files
    #[arg(long)]
    pub limit_memory: bool,
    /// Measure a store with a cache, and reads that cost nothing, once earlier runs of the query have filled the caches
    #[arg(long)]
    pub cache: bool,
}

impl Plan {
    /// Returns which of the stores are measured, in the order of the first round.
    fn contenders(&self) -> &'static [usize] {
        if self.cache { &[0, 1, 2, 5, CEILING] } else { &[0, 1, 2, 3, 4] }
    }
}

/// How a contender reads.
#[derive(Clone, Copy)]
enum Store {
    Of(Side),
    /// ringfile, with a cache as large as all files, or a quarter of them if memory is limited.
    Cached,
    /// All files are in the process's memory, and reads return slices of it.
    Ceiling,
}

/// All stores. One is listed twice: the difference between its two results is noise.
const CONTENDERS: [(&str, Store); 7] = [
    ("local", Store::Of(Side::Local)),
    ("local again", Store::Of(Side::Local)),
    ("adaptive", Store::Of(Side::Adaptive)),
    ("buffered", Store::Of(Side::Buffered)),
    ("direct", Store::Of(Side::Direct)),
    ("cached", Store::Cached),
    ("ceiling", Store::Ceiling),
];
const CEILING: usize = 6;
/// The contenders that a query's memory is measured with: it includes no cache.
const WITHOUT_CACHE: [usize; 2] = [0, 4];

/// The environment variable with the control group that a query's process enters.
const GROUP: &str = "RINGFILE_BENCH_GROUP";

/// How often a query runs again after the cold run. Only the last of these runs is measured: by then an adaptive store has
/// put everything into the cache that it ever will.
const REPEATS: usize = 3;

/// The state of the page cache when a query starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The page cache is empty and the session is new, so the query also reads the files' metadata.
    Cold,
    /// The page cache is as earlier runs of the same query left it: the fourth run, counting the cold one.
    Repeated,
    /// All files are in the page cache.
    Warm,
}

impl State {
    const ALL: [Self; 3] = [Self::Cold, Self::Repeated, Self::Warm];
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cold => "cold",
            Self::Repeated => "repeated",
            Self::Warm => "warm",
        })
    }
}

/// One run of a query.
#[derive(Clone, Debug)]
struct Run {
    query: usize,
    round: u32,
    contender: usize,
    state: State,
    time: Duration,
    cpu: Duration,
    idle: Duration,
    disk: u64,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [time, cpu, idle] = [self.time, self.cpu, self.idle].map(|time| time.as_micros());
        let (contender, state) = (CONTENDERS[self.contender].0, self.state);
        write!(
            f,
            "{}\t{}\t{contender}\t{state}\t{time}\t{cpu}\t{idle}\t{}",
            self.query, self.round, self.disk
        )
    }
}

impl FromStr for Run {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let fields: Vec<_> = line.split('\t').collect();
        let [query, round, contender, state, time, cpu, idle, disk] = fields[..] else {
            anyhow::bail!("not the line of a run: {line}");
        };
        let micros = |text: &str| text.parse().map(Duration::from_micros);
        let position = CONTENDERS.iter().position(|(name, _)| *name == contender);
        let state = State::ALL.into_iter().find(|known| known.to_string() == state);
        Ok(Self {
            query: query.parse()?,
            round: round.parse()?,
            contender: position.context("no such store")?,
            state: state.context("no such state")?,
            time: micros(time)?,
            cpu: micros(cpu)?,
            idle: micros(idle)?,
            disk: disk.parse()?,
        })
    }
}

/// Measures all queries, and returns the results as Markdown. If `runs_file` is given, writes each run's figures to it.
/// Needs root, to empty the page cache.
///
/// # Errors
/// If a query fails or returns other rows than in its first run, or if the page cache cannot be emptied.
pub fn all(plan: &Plan, runs_file: Option<&Path>) -> Result<String> {
    let folder = tpch::generate(&plan.data.folder, plan.data.scale)?;
    let size = size(&folder)?;
    let mut text = String::from("query\tround\tstore\tstate\tµs\tprocessor µs\tidle µs\tdisk bytes\n");
    let mut runs = Vec::new();
    for &query in &plan.data.queries.0 {
        eprintln!("query {query}");
        let group = if plan.limit_memory {
            let (_, peak) = run_process(&Plan { rounds: 1, ..plan.clone() }, query, None)?;
            Some(MemoryGroup::new(query, peak + size / 4)?)
        } else {
            None
        };
        let (more, _) = run_process(plan, query, group.as_ref())?;
        more.iter().for_each(|run| text.push_str(&format!("{run}\n")));
        runs.extend(more);
        if let Some(path) = runs_file {
            fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(report::markdown(plan, size, &runs))
}

/// Runs a query in a separate process. Returns its runs, and its peak memory.
fn run_process(plan: &Plan, query: usize, group: Option<&MemoryGroup>) -> Result<(Vec<Run>, u64)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench-query").arg(&plan.data.folder).stdout(Stdio::piped());
    command.args([
        "--scale",
        &plan.data.scale.to_string(),
        "--rounds",
        &plan.rounds.to_string(),
        &query.to_string(),
    ]);
    for (is_set, option) in [(plan.limit_memory, "--limit-memory"), (plan.cache, "--cache")] {
        command.args(is_set.then_some(option));
    }
    if let Some(group) = group {
        command.env(GROUP, group.path());
    }
    let output = command.spawn()?.wait_with_output()?;
    ensure!(output.status.success(), "query {query}: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let (runs, peak) = text.trim_end().rsplit_once('\n').context("the query's process printed nothing")?;
    Ok((runs.lines().map(str::parse).collect::<Result<_>>()?, peak.parse()?))
}

/// Measures one query, and prints its runs. Its parent is [`all`].
///
/// # Errors
/// As [`all`].
pub async fn one(plan: &Plan, number: usize) -> Result<()> {
    let folder = tpch::generate(&plan.data.folder, plan.data.scale)?;
    let group = std::env::var_os(GROUP);
    let contenders: &[usize] = match group {
        None if plan.limit_memory && plan.cache => &WITHOUT_CACHE,
        _ => plan.contenders(),
    };
    let cache = usize::try_from(size(&folder)? / if plan.limit_memory { 4 } else { 1 })?;
    let mut query = Query { folder, number, scale: plan.data.scale, cache, ceiling: None };
    if contenders.iter().any(|&contender| matches!(CONTENDERS[contender].1, Store::Ceiling)) {
        // Before the process enters the group, so that this memory does not count.
        query.ceiling = Some(in_memory(&query.folder).await?);
    }
    if let Some(group) = group {
        let procs = Path::new(&group).join("cgroup.procs");
        fs::write(&procs, "0").with_context(|| format!("cannot enter {}", procs.display()))?;
    }
    // Also reads the program itself: its unused pages are evicted when caches are dropped.
    let expected = query.run(&query.session(Store::Of(Side::Local)).await?).await?;
    let fills_once = plan.cache && !plan.limit_memory;
    let mut sessions = Vec::new();
    if fills_once {
        read_files(&query.folder)?;
        for &contender in contenders {
            let session = query.session(CONTENDERS[contender].1).await?;
            query.run(&session).await?;
            sessions.push(session);
        }
    }
    for round in 0..plan.rounds {
        for turn in 0..contenders.len() {
            let turn = (turn + round as usize) % contenders.len();
            let contender = contenders[turn];
            let store = CONTENDERS[contender].1;
            let print = |state, usage: Usage| {
                let Usage { time, cpu, idle, disk, ringfile: _ } = usage;
                println!("{}", Run { query: number, round, contender, state, time, cpu, idle, disk });
            };
            if fills_once {
                query.measure(&sessions[turn], &expected, State::Warm, print).await?;
                continue;
            }
            query.cold(store, &expected, print).await?;
            if !plan.limit_memory {
                query.warm(store, &expected, print).await?;
            }
        }
    }
    println!("{}", peak()?);
    Ok(())
}

struct Query {
    folder: PathBuf,
    number: usize,
    scale: f64,
    /// The size of [`Store::Cached`]'s cache in bytes.
    cache: usize,
    ceiling: Option<Arc<dyn ObjectStore>>,
}

impl Query {
    async fn session(&self, store: Store) -> Result<SessionContext> {
        let context = SessionContext::new();
        let store = match store {
            Store::Of(side) => side.open()?,
            Store::Cached => Side::Cached(self.cache).open()?,
            Store::Ceiling => self.ceiling.clone().context("the files are not in memory")?,
        };
        side::register(&context.runtime_env(), store);
        tables::register(&context, &self.folder).await?;
        Ok(context)
    }

    async fn run(&self, context: &SessionContext) -> Result<Rows> {
        tpch::run(context, self.number, self.scale).await
    }

    async fn cold(&self, store: Store, expected: &Rows, print: impl Fn(State, Usage)) -> Result<()> {
        drop_caches()?;
        let meter = Meter::start()?;
        let context = self.session(store).await?;
        let rows = self.run(&context).await?;
        print(State::Cold, meter.stop()?);
        rows.expect(expected)?;
        for _ in 1..REPEATS {
            self.run(&context).await?;
        }
        self.measure(&context, expected, State::Repeated, print).await
    }

    async fn warm(&self, store: Store, expected: &Rows, print: impl Fn(State, Usage)) -> Result<()> {
        let context = self.session(store).await?;
        read_files(&self.folder)?;
        self.run(&context).await?;
        self.measure(&context, expected, State::Warm, print).await
    }

    async fn measure(
        &self,
        context: &SessionContext,
        expected: &Rows,
        state: State,
        print: impl Fn(State, Usage),
    ) -> Result<()> {
        let meter = Meter::start()?;
        let rows = self.run(context).await?;
        print(state, meter.stop()?);
        rows.expect(expected).with_context(|| format!("query {}, {state}", self.number))
    }
}

fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot empty the page cache: only root can")
}

/// Returns the size of all files, in bytes.
fn size(folder: &Path) -> Result<u64> {
    let sizes = tables::files(folder)?.into_iter().map(|path| Ok(fs::metadata(path)?.len()));
    Ok(sizes.sum::<io::Result<u64>>()?)
}

/// Returns a store that has all files in memory, and whose reads copy nothing.
async fn in_memory(folder: &Path) -> Result<Arc<dyn ObjectStore>> {
    let store = InMemory::new();
    for path in tables::files(&folder.canonicalize()?)? {
        store.put(&object_store::path::Path::from_absolute_path(&path)?, fs::read(&path)?.into()).await?;
    }
    Ok(Arc::new(store))
}

/// Reads all files, so that the page cache has them.
fn read_files(folder: &Path) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    for path in tables::files(folder)? {
        let mut file = File::open(&path)?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}

/// Returns the peak memory of this process, in bytes.
fn peak() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("/proc/self/status has no VmHWM")? << 10)
}
