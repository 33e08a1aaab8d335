//! `compare new-file`: direct writes that fill a new file, by how its space was prepared.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use futures::stream::{FuturesUnordered, StreamExt};
use ringfile::fs::AllocateMode;
use ringfile::{File, OpenOptions, Pool, block_on};
use ringfile_cli::shared::{Table, size};

use crate::rounds::{in_turn, spread_of};
use crate::table::spread;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the files are made; each is removed after its round
    #[arg(long)]
    folder: PathBuf,
    /// Bytes that are written in a round
    #[arg(long, default_value = "32m", value_parser = size)]
    size: u64,
    /// Rounds of all rows in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Clone, Copy)]
enum Space {
    None,
    Length,
    Allocated(AllocateMode),
}

/// What is prepared, and the length of a block and how many are in flight.
const ROWS: [(&str, Space, usize, usize); 6] = [
    ("nothing", Space::None, 4 << 10, 64),
    ("set_len", Space::Length, 4 << 10, 64),
    ("allocate(Extend)", Space::Allocated(AllocateMode::Extend), 4 << 10, 64),
    ("allocate(Written)", Space::Allocated(AllocateMode::Written), 4 << 10, 64),
    ("nothing", Space::None, 1 << 20, 8),
    ("nothing, once more (A/A)", Space::None, 1 << 20, 8),
];

/// Measures all rows, and prints a table.
pub fn compare(options: &Options) -> io::Result<()> {
    let path = options.folder.join(format!("ringfile-new-{}", std::process::id()));
    let runs = in_turn(options.rounds, ROWS.len(), |round, row| {
        let done = block_on(fill(&path, options.size, ROWS[row]));
        std::fs::remove_file(&path)?;
        let (preparing, mib) = done?;
        eprintln!("round {round}/{}, {}: {mib:.0} MiB/s", options.rounds, ROWS[row].0);
        io::Result::Ok(Some((preparing, mib)))
    })?;
    let table = Table::default().text("prepared by").number("blocks of").number("in flight");
    let mut table = table.number("MiB/s median [min..max]").number("ms to prepare");
    for ((name, _, block, depth), runs) in ROWS.iter().zip(&runs) {
        table.row(vec![
            (*name).into(),
            format!("{} KiB", block >> 10),
            depth.to_string(),
            spread(spread_of(runs.iter().map(|run| run.1)), 0),
            format!("{:.0}", spread_of(runs.iter().map(|run| run.0 * 1e3)).median),
        ]);
    }
    print!("{table}");
    println!("\n{} rounds of {} MiB each, O_DIRECT, synced at the end.", options.rounds, options.size >> 20);
    Ok(())
}

/// Returns the seconds that preparing took, and the MiB that were then written in a second.
async fn fill(path: &PathBuf, size: u64, row: (&str, Space, usize, usize)) -> io::Result<(f64, f64)> {
    let (_, space, block, depth) = row;
    let began = Instant::now();
    let file = OpenOptions::new().read(true).write(true).create_new(true).direct(true).open(path).await?;
    match space {
        Space::None => {}
        Space::Length => file.set_len(size).await?,
        Space::Allocated(mode) => file.allocate(mode, 0, size).await?,
    }
    file.sync_all().await?;
    let (preparing, began) = (began.elapsed(), Instant::now());
    let pool = Pool::new((2 * depth * block).max(4 << 20));
    let (file, pool) = (&file, &pool);
    let writes = (0..depth as u64).map(|task| write_some(file, pool, block, task, depth as u64, size));
    let all = writes.collect::<FuturesUnordered<_>>().collect::<Vec<_>>().await;
    all.into_iter().collect::<io::Result<()>>()?;
    file.sync_all().await?;
    let seconds = began.elapsed().as_secs_f64();
    let last = file.read_exact_at(pool.get(block)?, size - block as u64).await?;
    if last.iter().any(|&byte| byte != 7) {
        return Err(io::Error::other("the last block is not what was written"));
    }
    Ok((preparing.as_secs_f64(), size as f64 / f64::from(1 << 20) / seconds))
}

/// Writes each block of the file that is this task's.
async fn write_some(
    file: &File,
    pool: &Pool,
    block: usize,
    task: u64,
    tasks: u64,
    size: u64,
) -> io::Result<()> {
    let mut buffer = pool.get(block)?;
    buffer.resize(block, 7);
    for at in (task * block as u64..size).step_by(tasks as usize * block) {
        buffer = file.write_at(buffer, at).await?;
    }
    Ok(())
}
