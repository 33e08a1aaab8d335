//! Serves ranges of a file over HTTP, inside tokio: `cargo run --release --example range_server -- serve FILE ADDRESS`.
//!
//! Without arguments, or with `check SIZE` (such as `check 1g`), it checks itself: it makes a file of that size, lets a
//! thousand clients request ranges of it at once, and compares every byte.
//!
//! The file's reads are plain futures: cached data is read at once on tokio's own thread; other data is read through
//! io_uring, and blocks nothing but its own request.

use std::error::Error;
use std::ops::Range;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ringfile::{File, Pool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CLIENTS: u64 = 1000;
const LONGEST: u64 = 1 << 20;

#[derive(Clone)]
struct Shop {
    file: File,
    pool: Pool,
}

async fn serve(State(shop): State<Shop>, headers: HeaderMap) -> Response {
    let Ok(size) = shop.file.size() else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let Some(range) = wanted(&headers, size) else {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    };
    let about = [
        (header::CONTENT_LENGTH, (range.end - range.start).to_string()),
        (header::CONTENT_RANGE, format!("bytes {}-{}/{size}", range.start, range.end - 1)),
    ];
    let pieces = shop.file.reader(&shop.pool).range(range).block(64 << 10).depth(2);
    (StatusCode::PARTIAL_CONTENT, about, Body::from_stream(pieces)).into_response()
}

/// Returns the requested range, `bytes=FIRST-LAST`; the whole file if there is none.
fn wanted(headers: &HeaderMap, size: u64) -> Option<Range<u64>> {
    let Some(value) = headers.get(header::RANGE) else { return (size > 0).then_some(0..size) };
    let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let last = if last.is_empty() { size.checked_sub(1)? } else { last.parse().ok()? };
    (first <= last && first < size).then(|| first..last.saturating_add(1).min(size))
}

async fn listen(path: &Path, listener: TcpListener) -> std::io::Result<()> {
    let shop = Shop { file: File::open(path).await?, pool: Pool::new(256 << 20) };
    axum::serve(listener, Router::new().route("/", get(serve)).with_state(shop)).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", path, address] => {
            let listener = TcpListener::bind(address).await?;
            println!("http://{}/", listener.local_addr()?);
            Ok(listen(Path::new(path), listener).await?)
        }
        ["check", size] => check(parse_size(size)?).await,
        [] => check(32 << 20).await,
        _ => Err("usage: range_server [serve FILE ADDRESS | check SIZE]".into()),
    }
}

fn parse_size(text: &str) -> Result<u64, Box<dyn Error>> {
    let digits = text.trim_end_matches(['k', 'm', 'g']);
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return Err(format!("{text}: a size is a number and one of k, m, g").into()),
    };
    Ok(digits.parse::<u64>()?.checked_mul(unit).filter(|&size| size >= LONGEST).ok_or("1m at least")?)
}

/// Returns the eight bytes that belong at `offset`, a multiple of eight.
fn word_at(offset: u64) -> [u8; 8] {
    (offset / 8 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()
}

fn make(path: &PathBuf, size: u64) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    (0..size / 8).try_for_each(|at| file.write_all(&word_at(at * 8)))?;
    file.flush()
}

async fn check(size: u64) -> Result<(), Box<dyn Error>> {
    let size = size / 8 * 8;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("served.bin");
    make(&path, size)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move { listen(&path, listener).await });
    let began = std::time::Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            tokio::spawn(async move { ask(address, client, size).await.map_err(|error| error.to_string()) })
        })
        .collect();
    let mut bytes = 0;
    for client in clients {
        bytes += client.await??;
    }
    let counts = ringfile::metrics();
    println!("{CLIENTS} clients at once, {bytes} bytes, each as it should be, in {:?}", began.elapsed());
    println!("{} reads, {} of them at once on tokio's threads", counts.ops, counts.inline_ops);
    server.abort();
    Ok(())
}

/// Requests a range and compares it.
async fn ask(
    address: std::net::SocketAddr,
    client: u64,
    size: u64,
) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let spread = client.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let len = 1 + spread % (LONGEST - 1);
    let first = (spread >> 20) % (size - len);
    let mut socket = TcpStream::connect(address).await?;
    let last = first + len - 1;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nRange: bytes={first}-{last}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no end of the head")? + 4;
    let (head, body) = answer.split_at(end);
    if !head.starts_with(b"HTTP/1.1 206 ") || body.len() as u64 != len {
        return Err(format!(
            "{len} bytes at {first}: {} came: {:?}",
            body.len(),
            String::from_utf8_lossy(head)
        )
        .into());
    }
    for (at, &byte) in (first..).zip(body) {
        if byte != word_at(at / 8 * 8)[(at % 8) as usize] {
            return Err(format!("the byte at {at} is wrong").into());
        }
    }
    Ok(len)
}
