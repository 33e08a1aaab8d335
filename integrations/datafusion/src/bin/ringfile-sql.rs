//! Runs a query on a folder of Parquet files, and prints its time and how its data was read.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::collect;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::prelude::SessionContext;
use ringfile_datafusion::side::SideArgs;
use ringfile_datafusion::tables;
use ringfile_datafusion::usage::Meter;

/// Runs a query on a folder of Parquet files, read through ringfile or LocalFileSystem.
///
/// Each file `name.parquet` in the folder is a table `name`; so is each folder `name` in it that has Parquet files.
#[derive(Debug, Parser)]
struct Arguments {
    /// The folder with the tables
    folder: PathBuf,
    /// The query
    #[arg(required_unless_present_any = ["file", "tables"])]
    query: Option<String>,
    /// Read the query from a file
    #[arg(long, short, conflicts_with = "query")]
    file: Option<PathBuf>,
    /// List the tables and their columns instead
    #[arg(long, conflicts_with_all = ["query", "file"])]
    tables: bool,
    #[command(flatten)]
    side: SideArgs,
    /// Run the query this many times in one session; the first run also reads the files' metadata
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Print at most this many rows
    #[arg(long, default_value_t = 40)]
    rows: usize,
    /// Print the plan with the cost of each part, as EXPLAIN ANALYZE does
    #[arg(long)]
    explain: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let context = SessionContext::new();
    arguments.side.side()?.register(&context.runtime_env())?;
    let meter = Meter::start()?;
    let names = tables::register(&context, &arguments.folder).await?;
    if arguments.tables {
        for name in names {
            let table = context.table(format!("\"{name}\"")).await?;
            let columns: Vec<_> = table.schema().fields().iter().map(|field| field.name().as_str()).collect();
            println!("{name}: {}", columns.join(", "));
        }
        return Ok(());
    }
    println!("{} tables: {}", names.len(), meter.stop()?);
    let query = match (&arguments.query, &arguments.file) {
        (Some(query), _) => query.clone(),
        (None, Some(file)) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
        }
        (None, None) => String::new(),
    };
    for run in 1..=arguments.runs {
        execute(&context, &query, &arguments, run).await?;
    }
    Ok(())
}

async fn execute(context: &SessionContext, query: &str, arguments: &Arguments, run: u32) -> Result<()> {
    let meter = Meter::start()?;
    let plan = context.sql(query).await?.create_physical_plan().await?;
    let batches = collect(plan.clone(), context.task_ctx()).await?;
    let usage = meter.stop()?;
    let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    if run == arguments.runs {
        let mut left = arguments.rows;
        let shown: Vec<_> = batches
            .iter()
            .map(|batch| {
                let rows = batch.num_rows().min(left);
                left -= rows;
                batch.slice(0, rows)
            })
            .collect();
        println!("{}", pretty_format_batches(&shown)?);
        if rows > arguments.rows {
            println!("and {} more rows", rows - arguments.rows);
        }
        if arguments.explain {
            println!("{}", DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(true));
        }
    }
    println!("{rows} rows: {usage}");
    Ok(())
}
