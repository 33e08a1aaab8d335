{-# LANGUAGE CPP #-}
{-# LANGUAGE MagicHash #-}
{-# LANGUAGE ScopedTypeVariables #-}
{-# LANGUAGE UnboxedTuples #-}

-- | Tests the package as a program uses it. Prints each test; one that cannot run here is skipped by name.
--
-- > tests FOLDER    FOLDER is for files, and should be on a disk
module Main (main) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Control.Monad.Primitive (RealWorld, touch)
import Data.Bits (shiftR, xor)
import Data.IORef
import Data.List (isInfixOf, sort)
import Data.Primitive.ByteArray
import qualified Data.Vector as V
import qualified Data.Vector.Unboxed as VU
import Data.Word
import Foreign.C.Error
import GHC.Clock (getMonotonicTime)
import GHC.Exts (mkWeak#)
import GHC.IO (IO (..))
import GHC.IO.Exception (IOErrorType (..), ioe_location, ioe_type)
import GHC.Stats (allocated_bytes, getRTSStats)
import System.Directory (createDirectoryIfMissing, getSymbolicLinkTarget, listDirectory, removeFile)
import System.Environment (getArgs, lookupEnv)
import System.Exit (ExitCode (..))
import System.IO
import System.IO.BlockIO
import System.IO.Ringfile
import System.Mem (performMajorGC)
import System.Posix.Files (fileSize, getFdStatus, setFdSize)
import System.Posix.IO hiding (openFd)
import qualified System.Posix.IO as Posix
import System.Posix.Process (ProcessStatus (Exited), exitImmediately, forkProcess, getProcessStatus)
import System.Posix.Types (Fd (..), FileOffset)
import System.Timeout (timeout)

main :: IO ()
main = do
  hSetBuffering stdout LineBuffering
  args <- getArgs
  folder <- case args of
    [folder] -> pure folder
    _ -> fail "usage: tests FOLDER"
  createDirectoryIfMissing True folder
  forM_ tests $ \(name, test) -> do
    -- Each in a thread that is not bound.
    end <- newEmptyMVar
    _ <- forkIO (try (test folder) >>= putMVar end)
    result <- timeout 60000000 (takeMVar end)
    case result of
      Just (Right Passed) -> putStrLn ("ok " ++ name)
      Just (Right (Skipped why)) -> putStrLn ("skipped " ++ name ++ ": " ++ why)
      Just (Left (why :: SomeException)) -> putStrLn ("FAILED " ++ name) >> throwIO why
      Nothing -> fail ("FAILED " ++ name ++ ": hangs")

data End = Passed | Skipped String

tests :: [(String, FilePath -> IO End)]
tests =
  [ ("reads return what was written", readsReturnWhatWasWritten),
    ("errors are results", errorsAreResults),
    ("reads at the end of the file are shorter", endOfFile),
    ("a read of a pipe ends with what is there", pipes),
    ("results arrive after pauses, and while another batch waits", pauses),
    ("an empty batch has no results", emptyBatch),
    ("a large batch allocates little", allocatesLittle),
    ("a large batch is divided", largeBatch),
    ("a batch beyond the limit blocks only its own thread", limitBlocks),
    ("many threads", manyThreads),
    ("many threads that are interrupted", manyInterruptions),
    ("a timeout cancels, and then the kernel no longer uses the array", timeoutCancels),
    ("killing a thread cancels the parts of a large batch", killCancelsAll),
    ("killing a thread that waits for room submits nothing", killWhileWaiting),
    ("closing cancels what is in flight, and keeps its array", closeInFlight),
    ("closing twice, and submitting afterwards", closedContext),
    ("closing between the parts of a large batch", closeBetweenParts),
    ("a forked child cannot use its parent's context", forkedChild),
    ("arrays that are not pinned, and ranges outside of them, are refused", wrongOperations),
    ("limits out of range are refused", wrongLimits),
    ("a descriptor that is used again is another file", descriptorsAreUsedAgain),
    ("a file that the program has closed is released", closedFilesAreReleased),
    ("direct reads into registered memory", registeredMemory),
    ("registered memory that is in use at the end stays registered, and is not collected", registeredInUse),
    ("a queue of one thread", queueOfOneThread),
    ("a queue that ends cancels what is in flight", queueEnds)
  ]

-- Helpers

check :: String -> Bool -> IO ()
check what holds = unless holds (fail what)

equal :: (Eq a, Show a) => String -> a -> a -> IO ()
equal what wanted found = check (what ++ ": " ++ show found ++ " instead of " ++ show wanted) (wanted == found)

passes :: IO () -> IO End
passes = fmap (const Passed)

openFile' :: FilePath -> OpenMode -> IO Fd
#if MIN_VERSION_unix(2,8,0)
openFile' path mode = Posix.openFd path mode defaultFileFlags {creat = Just 0o600}
#else
openFile' path mode = Posix.openFd path mode (Just 0o600) defaultFileFlags
#endif

withFile' :: FilePath -> String -> (Fd -> IO a) -> IO a
withFile' folder name action = do
  let path = folder ++ "/haskell-" ++ name
  result <- bracket (openFile' path ReadWrite) closeFd $ \fd -> setFdSize fd 0 >> action fd
  removeFile path
  pure result

withPipe :: ((Fd, Fd) -> IO a) -> IO a
withPipe = bracket createPipe (\(from, to) -> closeFd from >> closeFd to)

-- | The byte that a file has at a position.
byteAt :: Int -> Int -> Word8
byteAt salt offset = fromIntegral ((offset * 31 + offset `shiftR` 12 * 7) `xor` salt)

filled :: Int -> (Int -> Word8) -> IO (MutableByteArray RealWorld)
filled size byte = do
  array <- newPinnedByteArray size
  forM_ [0 .. size - 1] $ \at -> writeByteArray array at (byte at)
  pure array

bytes :: MutableByteArray RealWorld -> Int -> Int -> IO [Word8]
bytes array start count = forM [start .. start + count - 1] (readByteArray array)

writeAll :: IOCtx -> Fd -> Int -> (Int -> Word8) -> IO ()
writeAll ctx fd size byte = do
  array <- filled size byte
  results <- submitIO ctx (V.singleton (IOOpWrite fd 0 array 0 (fromIntegral size)))
  equal "writing" [IOResult (fromIntegral size)] (VU.toList results)

-- | Programs that were written for blockio-uring compare the place too.
isError :: IOErrorType -> String -> IOException -> Bool
isError kind place why = ioe_type why == kind && ioe_location why == place

unpinned, outside, closed, forkedAway :: IOException -> Bool
unpinned = isError InvalidArgument "MutableByteArray is unpinned"
outside = isError InvalidArgument "IOOp is outside of its MutableByteArray"
closed = isError ResourceVanished "IOCtx closed"
forkedAway = isError UnsupportedOperation "IOCtx created before forkProcess"

fails :: Exception e => String -> (e -> Bool) -> IO a -> IO ()
fails what matches action = do
  result <- try action
  case result of
    Left exception | matches exception -> pure ()
    Left exception -> fail (what ++ ": " ++ show exception)
    Right _ -> fail (what ++ ": no exception")

-- | Waits until a condition holds.
eventually :: String -> IO Bool -> IO ()
eventually what condition = do
  began <- getMonotonicTime
  let again = do
        holds <- condition
        late <- (> began + 50) <$> getMonotonicTime
        unless holds $ if late then fail (what ++ ": not within 50 s") else threadDelay 5000 >> again
  again

-- | Starts a thread, and returns it with what it ends with.
forked :: IO a -> IO (ThreadId, MVar (Either SomeException a))
forked action = do
  end <- newEmptyMVar
  thread <- forkIO (try action >>= putMVar end)
  pure (thread, end)

-- | Waits until a thread is blocked, as in 'submitIO'.
untilBlocked :: MVar a -> IO ()
untilBlocked end = threadDelay 50000 >> tryReadMVar end >>= maybe (pure ()) (const (fail "the thread does not wait"))

outcome :: MVar (Either SomeException a) -> IO a
outcome end = takeMVar end >>= either throwIO pure

ring :: (IOCtx -> IO a) -> IO a
ring = withIOCtx defaultIOCtxParams

small :: Int -> Int -> IOCtxParams
small batch concurrency = defaultIOCtxParams {ioctxBatchSizeLimit = batch, ioctxConcurrencyLimit = concurrency}

-- Tests

readsReturnWhatWasWritten :: FilePath -> IO End
readsReturnWhatWasWritten folder = passes . withFile' folder "bytes" $ \fd -> ring $ \ctx -> do
  memory <- filled (16 * 1000) (byteAt 1)
  written <- submitIO ctx $ V.generate 16 $ \at -> IOOpWrite fd (fromIntegral at * 1000) memory (at * 1000) 1000
  equal "writing" (replicate 16 (IOResult 1000)) (VU.toList written)
  target <- filled 8192 (const 0xee)
  -- In another order, of different lengths, with gaps in the array.
  let reads_ = [(7003, 0, 10), (0, 100, 1), (12999, 200, 3001), (500, 4000, 0)]
  results <- submitIO ctx $ V.fromList [IOOpRead fd offset target start count | (offset, start, count) <- reads_]
  equal "reading" [IOResult count | (_, _, count) <- reads_] (VU.toList results)
  forM_ reads_ $ \(offset, start, count) -> do
    found <- bytes target start (fromIntegral count)
    equal "bytes" [byteAt 1 (fromIntegral offset + at) | at <- [0 .. fromIntegral count - 1]] found
  gaps <- (++) <$> bytes target 10 90 <*> bytes target 101 99
  equal "gaps" (replicate 189 0xee) gaps

errorsAreResults :: FilePath -> IO End
errorsAreResults folder = passes . withFile' folder "errors" $ \fd -> ring $ \ctx -> do
  writeAll ctx fd 4096 (byteAt 2)
  array <- newPinnedByteArray 4096
  onlyReads <- openFile' (folder ++ "/haskell-errors") ReadOnly
  results <-
    submitIO ctx $
      V.fromList
        [ IOOpRead fd 0 array 0 1024,
          IOOpRead (Fd 1000000) 0 array 1024 1024,
          IOOpRead (Fd (-1)) 0 array 1024 1024,
          IOOpRead fd (-4096) array 1024 1024,
          IOOpWrite onlyReads 0 array 2048 1024,
          IOOpRead fd 1024 array 1024 1024
        ]
  closeFd onlyReads
  equal
    "results"
    [IOResult 1024, IOError eBADF, IOError eBADF, IOError eINVAL, IOError eBADF, IOResult 1024]
    (VU.toList results)
  bytes array 0 2048 >>= equal "bytes" (map (byteAt 2) [0 .. 2047])

endOfFile :: FilePath -> IO End
endOfFile folder = passes . withFile' folder "end" $ \fd -> ring $ \ctx -> do
  writeAll ctx fd 5000 (byteAt 3)
  array <- newPinnedByteArray 8192
  results <- submitIO ctx $ V.fromList [IOOpRead fd 4096 array 0 4096, IOOpRead fd 5000 array 4096 4096]
  equal "results" [IOResult 904, IOResult 0] (VU.toList results)

pipes :: FilePath -> IO End
pipes _ = passes . withPipe $ \(from, to) -> ring $ \ctx -> do
  array <- filled 4096 (const 0)
  (_, end) <- forked (submitIO ctx (V.singleton (IOOpRead from 0 array 0 4096)))
  untilBlocked end
  source <- filled 100 (byteAt 4)
  written <- submitIO ctx (V.singleton (IOOpWrite to 0 source 0 100))
  equal "writing" [IOResult 100] (VU.toList written)
  outcome end >>= equal "reading" [IOResult 100] . VU.toList
  bytes array 0 101 >>= equal "bytes" (map (byteAt 4) [0 .. 99] ++ [0])

pauses :: FilePath -> IO End
pauses _ = passes . withPipe $ \(from, to) -> withPipe $ \(other, toOther) -> ring $ \ctx -> do
  array <- filled 2 (const 0)
  let readByte fd at = forked (submitIO ctx (V.singleton (IOOpRead fd 0 array at 1)))
      rounds = forM_ [1 .. 200 :: Int] $ \_ -> do
        (_, end) <- readByte from 0
        yield
        void (fdWrite to "a")
        outcome end >>= equal "reading" [IOResult 1] . VU.toList
  rounds -- nothing else is in flight
  (_, waits) <- readByte other 1
  untilBlocked waits
  rounds
  void (fdWrite toOther "b")
  outcome waits >>= equal "reading the other" [IOResult 1] . VU.toList

emptyBatch :: FilePath -> IO End
emptyBatch _ = passes . ring $ \ctx -> submitIO ctx V.empty >>= equal "results" 0 . VU.length

-- | In Haskell's heap, for an operation in batches of 32: its result, and a part of what each batch needs.
allocatesLittle :: FilePath -> IO End
allocatesLittle folder = passes . withFile' folder "allocates" $ \fd -> ring $ \ctx -> do
  writeAll ctx fd 4096 (byteAt 4)
  array <- newPinnedByteArray 4096
  let batch = V.generate 32 $ \at -> IOOpRead fd 0 array (at * 128) 128
      count = 1000
  before <- allocated
  replicateM_ count $ submitIO ctx batch >>= check "a read failed" . VU.all (== IOResult 128)
  after <- allocated
  let each = (after - before) `div` fromIntegral (32 * count)
  check (show each ++ " bytes for an operation") (each <= 40)
  where
    -- As of the last collection.
    allocated = performMajorGC >> allocated_bytes <$> getRTSStats

largeBatch :: FilePath -> IO End
largeBatch folder = passes . withFile' folder "large" $ \fd -> withIOCtx (small 7 16) $ \ctx -> do
  writeAll ctx fd 100000 (byteAt 5)
  array <- newPinnedByteArray 100000
  results <- submitIO ctx $ V.generate 1000 $ \at ->
    IOOpRead fd (fromIntegral ((at * 7 `mod` 1000) * 100)) array (at * 100) (fromIntegral (at `mod` 100))
  equal "results" [IOResult (fromIntegral (at `mod` 100)) | at <- [0 .. 999 :: Int]] (VU.toList results)
  forM_ [0 .. 999] $ \at -> do
    found <- bytes array (at * 100) (at `mod` 100)
    equal "bytes" [byteAt 5 ((at * 7 `mod` 1000) * 100 + byte) | byte <- [0 .. at `mod` 100 - 1]] found

limitBlocks :: FilePath -> IO End
limitBlocks folder = passes . withFile' folder "limit" $ \fd -> withPipe $ \(from, to) -> withIOCtx (small 2 3) $ \ctx -> do
  writeAll ctx fd 4096 (byteAt 6)
  let here = forkedOn 0
  array <- newPinnedByteArray 4096
  -- On one capability: two of the three operations wait for the pipe.
  first <- here (submitIO ctx (V.fromList [IOOpRead from 0 array 0 1, IOOpRead from 0 array 1 1]))
  untilBlocked first
  one <- here (submitIO ctx (V.singleton (IOOpRead fd 0 array 2 1)))
  outcome one >>= equal "one more" [IOResult 1] . VU.toList
  two <- here (submitIO ctx (V.replicate 2 (IOOpRead fd 0 array 3 1)))
  untilBlocked two
  -- It does not overtake those that came before, though there is room for it.
  three <- here (submitIO ctx (V.singleton (IOOpRead fd 0 array 5 1)))
  untilBlocked three
  -- Meanwhile another thread of the capability runs.
  ran <- here (pure ())
  outcome ran
  void (fdWrite to "ab")
  outcome first >>= equal "those that waited" [IOResult 1, IOResult 1] . VU.toList
  outcome two >>= equal "two more" [IOResult 1, IOResult 1] . VU.toList
  outcome three >>= equal "the last" [IOResult 1] . VU.toList
  where
    forkedOn capability action = do
      end <- newEmptyMVar
      _ <- forkOn capability (try action >>= putMVar end)
      pure end

manyThreads :: FilePath -> IO End
manyThreads folder = passes . withFile' folder "many" $ \fd -> ring $ \ctx -> do
  seconds <- maybe 4 read <$> lookupEnv "RINGFILE_TEST_STRESS_SECONDS"
  let threads = 300
      region = 16384
  setFdSize fd (fromIntegral (threads * region))
  deadline <- (+ seconds) <$> getMonotonicTime
  total <- newIORef (0 :: Int)
  ends <- forM [0 .. threads - 1] $ \thread -> do
    (_, end) <- forked $ do
      -- Each thread has a region of its own, and writes other bytes in each round.
      source <- newPinnedByteArray region
      target <- newPinnedByteArray region
      let go :: Int -> IO ()
          go turn = do
            let salt = thread * 13 + turn * 5
                parts = 1 + (thread + turn) `mod` 80
                size = region `div` parts
                batch operation array = V.generate parts $ \at ->
                  operation fd (fromIntegral (thread * region + at * size) :: FileOffset) array (at * size) (fromIntegral size)
            forM_ [0, 97 .. parts * size - 1] $ \at -> writeByteArray source at (byteAt salt at)
            written <- submitIO ctx (batch IOOpWrite source)
            check "a write failed" (VU.all (== IOResult (fromIntegral size)) written)
            setByteArray target 0 region (0 :: Word8)
            found <- submitIO ctx (batch IOOpRead target)
            check "a read failed" (VU.all (== IOResult (fromIntegral size)) found)
            forM_ [0, 97 .. parts * size - 1] $ \at ->
              readByteArray target at >>= equal ("byte " ++ show at ++ " of thread " ++ show thread) (byteAt salt at)
            atomicModifyIORef' total (\n -> (n + 2 * parts, ()))
            now <- getMonotonicTime
            when (now < deadline) (go (turn + 1))
      go 0
    pure end
  -- Collections move what is not pinned, and free what nobody holds.
  let collecting = do
        performMajorGC
        now <- getMonotonicTime
        when (now < deadline) (threadDelay 20000 >> collecting)
  collecting
  mapM_ outcome ends
  readIORef total >>= \n -> putStrLn ("   " ++ show n ++ " operations of " ++ show threads ++ " threads")

-- | After an interruption, nothing writes to the array any more, though reads were in flight.
manyInterruptions :: FilePath -> IO End
manyInterruptions folder = passes . withFile' folder "interrupted" $ \fd -> do
  seconds <- maybe 2 read <$> lookupEnv "RINGFILE_TEST_STRESS_SECONDS"
  ring $ \ctx -> writeAll ctx fd (1024 * 1024) (const 1)
  direct <- try (openDirect (folder ++ "/haskell-interrupted") ReadOnly Nothing)
  let from = either (\(_ :: IOException) -> fd) id direct
  deadline <- (+ seconds) <$> getMonotonicTime
  interrupted <- newIORef (0 :: Int)
  withIOCtx (small 16 64) $ \ctx -> do
    ends <- forM [0 .. 39] $ \thread -> fmap snd . forked $ do
      array <- newAlignedPinnedByteArray (40 * 4096) 4096
      let go :: Int -> IO ()
          go turn = do
            let at index = (thread * 7 + turn * 11 + index * 13) `mod` 256 * 4096
            ended <- timeout ((thread * 31 + turn * 97) `mod` 1500) $
              submitIO ctx (V.generate 40 $ \index -> IOOpRead from (fromIntegral (at index)) array (index * 4096) 4096)
            case ended of
              Just results -> check "a read failed" (VU.all (== IOResult 4096) results)
              Nothing -> do
                atomicModifyIORef' interrupted (\n -> (n + 1, ()))
                setByteArray array 0 (40 * 4096) (2 :: Word8)
                threadDelay 500
                found <- forM [0, 512 .. 40 * 4096 - 1] (readByteArray array)
                check "the array was written to" (all (== (2 :: Word8)) found)
            now <- getMonotonicTime
            when (now < deadline) (go (turn + 1))
      go 0
    mapM_ outcome ends
  either (const (pure ())) closeFd direct
  count <- readIORef interrupted
  putStrLn ("   " ++ show count ++ " interruptions")
  check "nothing was interrupted" (count > 0)

timeoutCancels :: FilePath -> IO End
timeoutCancels folder = passes . withFile' folder "timeout" $ \fd -> withPipe $ \(from, to) -> ring $ \ctx -> do
  writeAll ctx fd 4096 (byteAt 7)
  array <- filled 4096 (const 0)
  let batch = V.fromList [IOOpRead fd 0 array 0 100, IOOpRead from 0 array 100 100]
  ended <- timeout 50000 (submitIO ctx batch)
  check "the read of an empty pipe ended" (null ended)
  -- Nothing reads the pipe any more.
  void (fdWrite to "abc")
  -- Time in which nothing may read the pipe.
  threadDelay 20000
  bytes array 100 100 >>= equal "the array" (replicate 100 0)
  results <- submitIO ctx (V.singleton (IOOpRead from 0 array 0 3))
  equal "what the pipe has" [IOResult 3] (VU.toList results)

killCancelsAll :: FilePath -> IO End
killCancelsAll _ = passes . withPipe $ \(from, to) -> withIOCtx (small 4 64) $ \ctx -> do
  array <- filled 4096 (const 0)
  (thread, end) <- forked (submitIO ctx (V.generate 10 $ \at -> IOOpRead from 0 array at 1))
  untilBlocked end
  killThread thread
  result <- takeMVar end
  case result of
    Left why | Just ThreadKilled <- fromException why -> pure ()
    other -> fail ("killed: " ++ show other)
  void (fdWrite to (replicate 20 'x'))
  -- Time in which nothing may read the pipe.
  threadDelay 20000
  bytes array 0 10 >>= equal "the array" (replicate 10 0)
  -- The limit is whole again.
  results <- submitIO ctx (V.replicate 20 (IOOpRead from 0 array 0 1))
  equal "what the pipe has" (replicate 20 (IOResult 1)) (VU.toList results)

killWhileWaiting :: FilePath -> IO End
killWhileWaiting folder =
  passes . withFile' folder "waiting" $ \fd -> withPipe $ \(from, to) -> withIOCtx (small 4 4) $ \ctx -> do
    array <- filled 4096 (const 1)
    capabilities <- getNumCapabilities
    -- One on each capability, whichever this thread is on.
    holders <- forM [0 .. capabilities - 1] $ \at -> do
      end <- newEmptyMVar
      _ <- forkOn at (try (submitIO ctx (V.replicate 4 (IOOpRead from 0 array 0 1))) >>= putMVar end)
      untilBlocked end
      pure end
    -- The first part of this batch waits already.
    ended <- timeout 50000 (submitIO ctx (V.replicate 9 (IOOpWrite fd 0 array 0 4096)))
    check "it did not wait" (null ended)
    void (fdWrite to (replicate (4 * capabilities) 'x'))
    forM_ holders $ \end -> outcome end >>= equal "those that held the room" (replicate 4 (IOResult 1)) . VU.toList
    results <- submitIO ctx (V.singleton (IOOpRead fd 0 array 0 1))
    equal "what was written" [IOResult 0] (VU.toList results)

eCANCELED :: Errno
eCANCELED = Errno 125

closeInFlight :: FilePath -> IO End
closeInFlight _ = passes . withPipe $ \(from, _) -> do
  ctx <- initIOCtx defaultIOCtxParams
  collected <- newIORef False
  (_, end) <- forked $ do
    array <- newPinnedByteArray 100000
    onCollection array (writeIORef collected True)
    submitIO ctx (V.singleton (IOOpRead from 0 array 0 100000))
  untilBlocked end
  replicateM_ 3 (performMajorGC >> threadDelay 2000)
  readIORef collected >>= equal "collected in flight" False
  closers <- replicateM 3 (forked (closeIOCtx ctx))
  mapM_ (outcome . snd) closers
  outcome end >>= equal "the read" [IOError eCANCELED] . VU.toList
  -- Afterwards nothing holds it.
  eventually "collecting the array" (performMajorGC >> readIORef collected)

-- | Runs an action when the array is collected.
onCollection :: MutableByteArray RealWorld -> IO () -> IO ()
onCollection (MutableByteArray array) (IO action) = IO $ \s -> case mkWeak# array () action s of
  (# s', _ #) -> (# s', () #)

closedContext :: FilePath -> IO End
closedContext folder = passes . withFile' folder "closed" $ \fd -> do
  ctx <- initIOCtx defaultIOCtxParams
  writeAll ctx fd 4096 (byteAt 8)
  descriptors <- length <$> listDirectory "/proc/self/fd"
  closeIOCtx ctx
  closeIOCtx ctx
  fewer <- length <$> listDirectory "/proc/self/fd"
  check "closing closes descriptors" (fewer < descriptors)
  array <- newPinnedByteArray 4096
  fails "submitting" closed (submitIO ctx (V.singleton (IOOpRead fd 0 array 0 1)))
  fails "submitting nothing" closed (submitIO ctx V.empty)
  -- The array is not in use, and other contexts work.
  ring $ \other -> submitIO other (V.singleton (IOOpRead fd 0 array 0 1)) >>= equal "another" [IOResult 1] . VU.toList

closeBetweenParts :: FilePath -> IO End
closeBetweenParts folder = passes . withFile' folder "parts" $ \fd -> withPipe $ \(from, _) -> do
  ctx <- initIOCtx (small 1 1)
  array <- filled 4096 (const 1)
  -- The second part waits for the pipe, and the third for room.
  (_, end) <- forked . submitIO ctx . V.fromList $
    [IOOpWrite fd 0 array 0 4096, IOOpRead from 0 array 0 1, IOOpWrite fd 4096 array 0 4096]
  untilBlocked end
  closeIOCtx ctx
  fails "the batch" closed (outcome end)
  getFdStatus fd >>= equal "only the first part was carried out" 4096 . fileSize

forkedChild :: FilePath -> IO End
forkedChild folder =
  passes . withFile' folder "forked" $ \fd -> withPipe $ \(from, to) -> withIOCtx (small 1 1) $ \ctx -> do
    array <- filled 2 (const 0)
    -- The parent has taken all room, so the child must not wait for any.
    let readOne at = submitIO ctx (V.singleton (IOOpRead from 0 array at 1))
        isRefused :: IO a -> IO Bool
        isRefused = fmap (either forkedAway (const False)) . try
    capabilities <- getNumCapabilities
    ends <- forM [0 .. capabilities - 1] $ \at -> do
      end <- newEmptyMVar
      _ <- forkOn at (try (readOne 0) >>= putMVar end)
      untilBlocked end
      pure end
    child <- forkProcess $ do
      refused <- and <$> sequence [isRefused (readOne 1), isRefused (submitIO ctx V.empty), isRefused (closeIOCtx ctx)]
      own <- ring $ \other -> submitIO other (V.singleton (IOOpWrite fd 0 array 0 2))
      let known = VU.toList own `elem` [[IOResult 2], [IOError eOPNOTSUPP]]
      exitImmediately (if refused && known then ExitSuccess else ExitFailure 2)
    getProcessStatus True False child >>= equal "the child" (Just (Exited ExitSuccess))
    void (fdWrite to (replicate capabilities 'x'))
    forM_ ends $ \end -> outcome end >>= equal "the parent" [IOResult 1] . VU.toList

wrongOperations :: FilePath -> IO End
wrongOperations folder = passes . withFile' folder "wrong" $ \fd -> ring $ \ctx -> do
  array <- filled 4096 (const 1)
  moving <- newByteArray 100
  forM_
    [ ("unpinned", unpinned, IOOpRead fd 0 moving 0 10),
      ("unpinned, writing", unpinned, IOOpWrite fd 0 moving 0 10),
      ("before the array", outside, IOOpRead fd 0 array (-1) 10),
      ("beyond its end", outside, IOOpRead fd 0 array 4000 97),
      ("beginning beyond its end", outside, IOOpWrite fd 0 array 4097 0),
      ("a count that wraps around", outside, IOOpRead fd 0 array 4 (maxBound - 2))
    ]
    $ \(what, how, wrong) -> fails what how (submitIO ctx (V.fromList [IOOpWrite fd 0 array 0 4096, wrong]))
  fails "registering" unpinned (withRegistered moving (pure ()))
  results <- submitIO ctx (V.fromList [IOOpRead fd 0 array 0 1, IOOpRead fd 0 array 4096 0])
  equal "nothing was written" [IOResult 0, IOResult 0] (VU.toList results)

wrongLimits :: FilePath -> IO End
wrongLimits _ = passes $ do
  forM_
    [ (0, 10, "the batch size limit is non-positive"),
      (-1, 0, "the batch size limit is non-positive"),
      (32768, 65535, "the batch size limit is greater than or equal to 2^15"),
      (32768, 0, "the batch size limit is greater than or equal to 2^15"),
      (10, 0, "the concurrency limit is non-positive"),
      (10, -1, "the concurrency limit is non-positive"),
      (10, 65536, "the concurrency limit is greater than or equal to 2^16"),
      (11, 10, "the batch size limit exceeds the concurrency limit")
    ]
    $ \(batch, concurrency, why) ->
      fails (show (batch, concurrency)) (isError InvalidArgument ("IOCtxParams are invalid because " ++ why)) $
        withIOCtx (small batch concurrency) (const (pure ()))
  forM_ [(1, 1), (32767, 65535)] $ \(batch, concurrency) -> withIOCtx (small batch concurrency) (const (pure ()))

descriptorsAreUsedAgain :: FilePath -> IO End
descriptorsAreUsedAgain folder = passes . ring $ \ctx -> do
  array <- newPinnedByteArray 64
  found <- forM [10 .. 29] $ \salt -> withFile' folder ("again" ++ show salt) $ \fd -> do
    writeAll ctx fd 64 (byteAt salt)
    results <- submitIO ctx (V.singleton (IOOpRead fd 0 array 0 64))
    equal "results" [IOResult 64] (VU.toList results)
    bytes array 0 64 >>= equal "bytes" (map (byteAt salt) [0 .. 63])
    -- The bytes are in this file, and not in one that had the number before.
    getFdStatus fd >>= equal "size" 64 . fileSize
    pure fd
  check ("no descriptor was used again: " ++ show found) (length found > length (group (sort found)))
  where
    group (x : y : rest) | x == y = group (y : rest)
    group (x : rest) = x : group rest
    group [] = []

closedFilesAreReleased :: FilePath -> IO End
closedFilesAreReleased folder = passes . ring $ \ctx -> do
  withFile' folder "released" $ \fd -> writeAll ctx fd 64 (byteAt 9)
  eventually "releasing the file" $ do
    descriptors <- listDirectory "/proc/self/fd"
    let target fd = either (\(_ :: IOException) -> "") id <$> try (getSymbolicLinkTarget ("/proc/self/fd/" ++ fd))
    targets <- mapM target descriptors
    pure (not (any ("haskell-released" `isInfixOf`) targets))

registeredMemory :: FilePath -> IO End
registeredMemory folder = withFile' folder "direct" $ \fd -> do
  opened <- try (openDirect (folder ++ "/haskell-direct") ReadWrite Nothing)
  case opened of
    Left (why :: IOException) -> pure (Skipped ("no direct I/O here: " ++ show why))
    Right direct -> do
      before <- counters
      ring $ \ctx -> do
        writeAll ctx fd 65536 (byteAt 11)
        memory <- newAlignedPinnedByteArray 131072 4096
        withRegistered memory $ do
          results <- submitIO ctx $ V.generate 16 $ \at -> IOOpRead direct (fromIntegral at * 4096) memory (at * 4096) 4096
          equal "reading" (replicate 16 (IOResult 4096)) (VU.toList results)
          bytes memory 0 65536 >>= equal "bytes" (map (byteAt 11) [0 .. 65535])
          written <- submitIO ctx $ V.singleton (IOOpWrite direct 0 memory 4096 4096)
          equal "writing" [IOResult 4096] (VU.toList written)
          unaligned <- submitIO ctx . V.fromList $
            [IOOpRead direct 100 memory 70001 1000, IOOpWrite direct 100 memory 0 1000]
          equal "unaligned" [IOResult 1000, IOError eINVAL] (VU.toList unaligned)
          bytes memory 70001 1000 >>= equal "unaligned bytes" (map (byteAt 11) [4196 .. 5195])
      closeFd direct
      after <- counters
      check ("counters: " ++ show (before, after)) $
        operations after >= operations before + 19
          && bytesRead after >= bytesRead before + 66536
          && bytesWritten after >= bytesWritten before + 69632
      backend <- lookupEnv "RINGFILE_DISABLE"
      when (null backend) $ check ("registered: " ++ show after) (fixedOperations after >= fixedOperations before + 16)
      pure Passed

registeredInUse :: FilePath -> IO End
registeredInUse _ = passes . withPipe $ \(from, _) -> do
  collected <- newIORef False
  let readInFlight end = do
        array <- newAlignedPinnedByteArray 4096 4096
        onCollection array (writeIORef collected True)
        withQueue 1 $ \queue -> withRegistered array $ do
          addOps queue 0 (V.singleton (IOOpRead from 0 array 0 100))
          waitResults queue 0 >>= equal "the pipe is empty" 0 . VU.length
          end
      own = ErrorCall "the action's own"
  fails "the action throws" (== own) (readInFlight (throwIO own))
  fails "the action returns" (isError ResourceBusy "withRegistered") (readInFlight (pure ()))
  replicateM_ 3 (performMajorGC >> threadDelay 2000)
  readIORef collected >>= equal "collected" False

queueOfOneThread :: FilePath -> IO End
queueOfOneThread folder = passes . withFile' folder "queue" $ \fd -> do
  array <- filled 4096 (byteAt 12)
  target <- newPinnedByteArray 4096
  withQueue 8 $ \queue -> do
    addOps queue 100 (V.singleton (IOOpWrite fd 0 array 0 4096))
    waitResults queue 1 >>= equal "writing" [(100, IOResult 4096)] . VU.toList
    waitResults queue 1 >>= equal "nothing is open" [] . VU.toList
    forM_ [0, 8 .. 56] $ \number -> do
      let read64 at = IOOpRead fd (fromIntegral ((number + at) * 64)) target ((number + at) * 64) 64
      addOps queue (fromIntegral number) (V.generate 8 read64)
      fails "a ninth" (isError InvalidArgument "addOps") (addOps queue 0 (V.singleton (IOOpRead fd 0 target 0 1)))
      results <- waitResults queue 8
      equal "reading" [(fromIntegral (number + at), IOResult 64) | at <- [0 .. 7]] (sort' (VU.toList results))
    bytes target 0 4096 >>= equal "bytes" (map (byteAt 12) [0 .. 4095])
    let one from = IOOpRead from 0 target 0 1
    addOps queue 1 (V.fromList [one (Fd (-1)), one fd, one (Fd (-1))])
    results <- waitResults queue 3
    equal "errors" [(1, IOError eBADF), (2, IOResult 1), (3, IOError eBADF)] (sort' (VU.toList results))
    addOps queue 0 (V.replicate 8 (IOOpRead fd 0 target 0 1))
    results8 <- waitResults queue 8
    equal "all places again" 8 (VU.length results8)
  where
    sort' results = [(number, result) | wanted <- sort (map fst results), (number, result) <- results, number == wanted]

queueEnds :: FilePath -> IO End
queueEnds _ = passes . withPipe $ \(from, to) -> do
  array <- filled 100 (const 0)
  withQueue 2 $ \queue -> do
    addOps queue 1 (V.singleton (IOOpRead from 0 array 0 100))
    waitResults queue 0 >>= equal "the pipe is empty" 0 . VU.length
  void (fdWrite to "abc")
  -- Time for the read to end.
  threadDelay 20000
  bytes array 0 100 >>= equal "the array" (replicate 100 0)
  touch array
