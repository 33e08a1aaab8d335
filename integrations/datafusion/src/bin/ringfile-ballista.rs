//! Ballista whose scheduler and executors read through ringfile, and the TPC-H queries to try it with.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ballista::prelude::SessionContextExt;
use ballista_core::extension::SessionConfigExt;
use ballista_core::utils::default_session_builder;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use clap::{Parser, Subcommand};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use ringfile_datafusion::rows::Rows;
use ringfile_datafusion::side::{self, Side, SideArgs};
use ringfile_datafusion::tpch::Data;
use ringfile_datafusion::usage::Meter;
use ringfile_datafusion::{tables, tpch};
use rustix::process::{Pid, Signal, kill_process};

/// Ballista whose scheduler and executors read through ringfile.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a scheduler, which runs until it gets a signal
    Scheduler(SchedulerArguments),
    /// Start an executor, which runs until it gets a signal, and then prints how much it read
    Executor(ExecutorArguments),
    /// Run the TPC-H queries on a cluster, and check the rows; all nodes must see the data's folder under the same path
    Tpch(TpchArguments),
}

#[derive(Debug, clap::Args)]
struct SchedulerArguments {
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    #[arg(long, default_value_t = 50050)]
    port: u16,
    /// After this many seconds without a heartbeat, an executor's work is given to others
    #[arg(long, default_value_t = 180)]
    executor_timeout: u64,
    #[command(flatten)]
    side: SideArgs,
}

#[derive(Debug, clap::Args)]
struct ExecutorArguments {
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The name by which other nodes reach this one [default: the address]
    #[arg(long)]
    external_host: Option<String>,
    /// The port for data; the one after it is for control
    #[arg(long, default_value_t = 50051)]
    port: u16,
    #[arg(long, default_value = "127.0.0.1")]
    scheduler_host: String,
    #[arg(long, default_value_t = 50050)]
    scheduler_port: u16,
    /// The folder for data that is passed between stages of a query
    #[arg(long)]
    work_dir: PathBuf,
    /// Tasks that run at the same time [default: one for each processor]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    tasks: usize,
    /// Seconds between heartbeats
    #[arg(long, default_value_t = 1)]
    heartbeat: u64,
    #[command(flatten)]
    side: SideArgs,
}

#[derive(Debug, clap::Args)]
struct TpchArguments {
    #[command(flatten)]
    data: Data,
    #[arg(long, default_value = "df://127.0.0.1:50050")]
    scheduler: String,
    /// The number of a process to kill in the middle of the first query; the other queries run without it
    #[arg(long)]
    kill: Option<i32>,
}

#[tokio::main]
async fn main() -> Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match Arguments::parse().command {
        Command::Scheduler(arguments) => scheduler(arguments).await,
        Command::Executor(arguments) => executor(arguments).await,
        Command::Tpch(arguments) => run(arguments).await,
    }
}

async fn scheduler(arguments: SchedulerArguments) -> Result<()> {
    let store = arguments.side.side()?.open()?;
    // The scheduler lists files and reads their metadata, to plan queries.
    let sessions = move |config: SessionConfig| -> datafusion::error::Result<_> {
        let state = default_session_builder(config)?;
        side::register(state.runtime_env(), Arc::clone(&store));
        Ok(state)
    };
    let config = SchedulerConfig {
        external_host: arguments.host.clone(),
        bind_host: arguments.host.clone(),
        bind_port: arguments.port,
        executor_timeout_seconds: arguments.executor_timeout,
        expire_dead_executor_interval_seconds: (arguments.executor_timeout / 3).clamp(1, 15),
        override_session_builder: Some(Arc::new(sessions)),
        ..SchedulerConfig::default()
    };
    let address = format!("{}:{}", arguments.host, arguments.port);
    let address = address.parse().with_context(|| format!("{address}: not an address"))?;
    let cluster = BallistaCluster::new_from_config(&config).await?;
    Ok(start_server(cluster, address, Arc::new(config)).await?)
}

async fn executor(arguments: ExecutorArguments) -> Result<()> {
    let store = arguments.side.side()?.open()?;
    std::fs::create_dir_all(&arguments.work_dir)
        .with_context(|| format!("cannot create {}", arguments.work_dir.display()))?;
    let work_dir = arguments.work_dir.canonicalize()?;
    let work_dir = work_dir.to_str().context("the work folder's name is not UTF-8")?.to_owned();
    let spill = work_dir.clone();
    let runtimes = move |_: &SessionConfig| -> datafusion::error::Result<_> {
        let runtime = RuntimeEnvBuilder::new().with_temp_file_path(&spill).build_arc()?;
        side::register(&runtime, Arc::clone(&store));
        Ok(runtime)
    };
    let config = ExecutorProcessConfig {
        bind_host: arguments.host.clone(),
        external_host: Some(arguments.external_host.unwrap_or(arguments.host)),
        port: arguments.port,
        grpc_port: arguments
            .port
            .checked_add(1)
            .context("--port is too high: the port after it is used too")?,
        scheduler_host: arguments.scheduler_host,
        scheduler_port: arguments.scheduler_port,
        scheduler_connect_timeout_seconds: 30,
        work_dir: Some(work_dir),
        vcores: arguments.tasks,
        executor_heartbeat_interval_seconds: arguments.heartbeat,
        override_runtime_producer: Some(Arc::new(runtimes)),
        ..ExecutorProcessConfig::default()
    };
    let meter = Meter::start()?;
    let ended = start_executor_process(Arc::new(config)).await;
    println!("{}", meter.stop()?);
    Ok(ended?)
}

async fn run(arguments: TpchArguments) -> Result<()> {
    let Data { folder, scale, queries } = arguments.data;
    let folder = tpch::generate(&folder, scale)?;
    let alone = SessionContext::new();
    Side::Local.register(&alone.runtime_env())?;
    tables::register(&alone, &folder).await?;
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(SessionConfig::new_with_ballista())
        .build();
    let cluster = SessionContext::remote_with_state(&arguments.scheduler, state).await?;
    tables::register(&cluster, &folder).await?;
    for (at, &number) in queries.0.iter().enumerate() {
        let expected = tpch::run(&alone, number, scale).await?;
        let began = Instant::now();
        let rows = match arguments.kill {
            Some(pid) if at == 0 => run_and_kill(&cluster, number, scale, pid).await,
            _ => tpch::run(&cluster, number, scale).await,
        };
        let rows = rows?;
        rows.expect(&expected).with_context(|| format!("query {number}"))?;
        println!("query {number}: {} rows in {:.2} s, all right", rows.len(), began.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Runs a query to see how long it takes, then again, and kills a process in the middle.
async fn run_and_kill(cluster: &SessionContext, number: usize, scale: f64, pid: i32) -> Result<Rows> {
    let pid = Pid::from_raw(pid).filter(|_| pid > 1).context("--kill takes the number of a process")?;
    let began = Instant::now();
    tpch::run(cluster, number, scale).await?;
    let whole = began.elapsed();
    let mut second = pin!(tpch::run(cluster, number, scale));
    tokio::select! {
        _ = &mut second => bail!("query {number} was over before half the time it took first: {whole:?}"),
        () = tokio::time::sleep(whole / 2) => {}
    }
    kill_process(pid, Signal::KILL)
        .with_context(|| format!("cannot kill process {}", pid.as_raw_nonzero()))?;
    println!(
        "query {number}: killed process {} after {:.2} s",
        pid.as_raw_nonzero(),
        (whole / 2).as_secs_f64()
    );
    second.await
}
