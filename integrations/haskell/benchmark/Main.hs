{-# LANGUAGE CPP #-}
{-# LANGUAGE BangPatterns #-}

-- | Random reads of 4 KiB: @high@ by 'submitIO', from four Haskell threads for each capability, in batches of 32, or from
-- @THREADS@ in batches of @BATCH@; @low@ by the queue of one thread, which adds 32 as soon as 32 of 128 have ended. In
-- direct and cached files nothing is cached at the beginning, in hot files everything.
--
-- > randread high|low direct|cached|hot FILE [READS] [registered] [THREADSxBATCH]
--
-- @high@ with blockio-uring in place of ringfile, not direct: @ghc -O2 -threaded -rtsopts -DBLOCKIO_URING@.
module Main (main) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Control.Monad.Primitive (RealWorld)
import Data.Bits
import Data.Char (isDigit)
import Data.List (find)
import Data.Maybe (fromMaybe, listToMaybe)
import Data.Primitive.ByteArray
import qualified Data.Vector as V
import qualified Data.Vector.Unboxed as VU
import Data.Word
import GHC.Clock (getMonotonicTimeNSec)
import GHC.Stats (allocated_bytes, getRTSStats)
import System.CPUTime (getCPUTime)
import System.Directory (getDirectoryContents)
import System.Environment (getArgs)
import System.IO.BlockIO
#ifndef BLOCKIO_URING
import System.IO.Ringfile
#endif
import System.Mem (performMajorGC)
import System.Posix.Fcntl (Advice (..), fileAdvise)
import System.Posix.Files (fileSize, getFdStatus, getFileStatus)
import System.Posix.IO hiding (openFd)
import System.Posix.Types (Fd)
import qualified System.Posix.IO as Posix
import Text.Printf (printf)

main :: IO ()
main = do
  args <- getArgs
  case args of
    mode : how : path : more | mode `elem` ["high", "low"], how `elem` ["direct", "cached", "hot"] -> do
      capabilities <- getNumCapabilities
      fd <- if how == "direct" then openDirect' path else openCached path
      blocks <- (`div` 4096) . fromIntegral . fileSize <$> getFdStatus fd
      if how == "hot" then readAll fd blocks else fileAdvise fd 0 0 AdviceDontNeed
      -- No read-ahead, as in fio.
      fileAdvise fd 0 0 AdviceRandom
      let reads_ = maybe 262144 read (find (all isDigit) more)
          shape = fromMaybe (4 * capabilities, 32) $
            listToMaybe [(read threads, read size) | (threads@(_ : _), 'x' : size) <- map (span isDigit) more]
          around = if "registered" `elem` more then withRegistered' else const id
      (if mode == "high" then high shape else low) around fd blocks reads_
    _ -> fail "usage: randread high|low direct|cached|hot FILE [READS] [registered] [THREADSxBATCH]"
  where
    openCached path = do
      _ <- getFileStatus path
#if MIN_VERSION_unix(2,8,0)
      Posix.openFd path ReadOnly defaultFileFlags
#else
      Posix.openFd path ReadOnly Nothing defaultFileFlags
#endif
    readAll fd blocks = do
      memory <- newPinnedByteArray 4096
      withIOCtx defaultIOCtxParams $ \ctx -> forM_ [0, 64 .. blocks - 1] $ \first ->
        submitIO ctx (V.generate 64 $ \at -> IOOpRead fd (fromIntegral (first + at) * 4096) memory 0 4096)
#ifdef BLOCKIO_URING
    withRegistered' _ _ = fail "blockio-uring registers no memory"
    openDirect' _ = fail "blockio-uring opens no files"
#else
    withRegistered' = withRegistered
    openDirect' path = openDirect path ReadOnly Nothing
#endif

-- | Runs an action with an array registered, or not.
type Around = MutableByteArray RealWorld -> IO () -> IO ()

high :: (Int, Int) -> Around -> Fd -> Int -> Int -> IO ()
high (tasks, size) around fd blocks total = do
  let batches = total `div` (size * tasks)
      params = defaultIOCtxParams {ioctxBatchSizeLimit = 64, ioctxConcurrencyLimit = 256}
  memory <- newAlignedPinnedByteArray (tasks * size * 4096) 4096
  withIOCtx params $ \ctx -> around memory . report (batches * size * tasks) $ do
    ends <- forM [0 .. tasks - 1] $ \task -> do
      end <- newEmptyMVar
      _ <- forkOn task (try (run ctx memory task batches) >>= putMVar end)
      pure end
    forM_ ends (takeMVar >=> either (throwIO :: SomeException -> IO ()) pure)
  where
    run ctx memory task batches = go (0 :: Int) (seed task)
      where
        go !done !random = when (done < batches) $ do
          results <- submitIO ctx (batch fd memory (task * size) blocks random size)
          unless (VU.all (== IOResult 4096) results) $ fail ("a read failed: " ++ show results)
          go (done + 1) (iterate next random !! size)

low :: Around -> Fd -> Int -> Int -> IO ()
#ifdef BLOCKIO_URING
low _ _ _ _ = fail "blockio-uring has no queue of one thread"
#else
low around fd blocks total = do
  memory <- newAlignedPinnedByteArray (128 * 4096) 4096
  withQueue 128 $ \queue -> around memory . report total $ do
    let submit !number !random = addOps queue (fromIntegral number) (batch fd memory (number `mod` 128) blocks random 32)
        go !added !taken !random
          | taken >= total = pure ()
          | added < total && added - taken <= 96 = submit added random >> go (added + 32) taken (iterate next random !! 32)
          | otherwise = do
              results <- waitResults queue 32
              unless (VU.all ((== IOResult 4096) . snd) results) $ fail ("a read failed: " ++ show results)
              go added (taken + VU.length results) random
    go 0 (0 :: Int) (seed 0)
#endif

batch :: Fd -> MutableByteArray RealWorld -> Int -> Int -> Word64 -> Int -> V.Vector (IOOp RealWorld)
batch fd memory place blocks random0 count = V.unfoldrExactN count one (0, random0)
  where
    one (!index, !random) =
      let !block = fromIntegral ((random `shiftR` 11) `rem` fromIntegral blocks) :: Int
       in (IOOpRead fd (fromIntegral block * 4096) memory ((place + index) * 4096) 4096, (index + 1, next random))

-- | Xorshift.
next :: Word64 -> Word64
next x0 = x2 `xor` (x2 `shiftL` 17)
  where
    x1 = x0 `xor` (x0 `shiftL` 13)
    x2 = x1 `xor` (x1 `shiftR` 7)

seed :: Int -> Word64
seed task = iterate next (0x9e3779b97f4a7c15 * fromIntegral (task + 1)) !! 10

-- | Prints reads a second, processor time and bytes allocated for one read, and the process's OS threads.
report :: Int -> IO () -> IO ()
report total action = do
  performMajorGC
  bytesBefore <- allocated_bytes <$> getRTSStats
  began <- getMonotonicTimeNSec
  usedBefore <- getCPUTime
  action
  used <- subtract usedBefore <$> getCPUTime
  elapsed <- subtract began <$> getMonotonicTimeNSec
  threads <- length . filter (all isDigit) <$> getDirectoryContents "/proc/self/task"
  performMajorGC
  bytes <- subtract bytesBefore . allocated_bytes <$> getRTSStats
  printf "%d reads, %.0f a second, %.3f us of CPU time for one, %.0f bytes allocated for one, %d threads\n" total
    (fromIntegral total * 1e9 / fromIntegral elapsed :: Double)
    (fromIntegral used / 1e6 / fromIntegral total :: Double)
    (fromIntegral bytes / fromIntegral total :: Double)
    threads
