{-# LANGUAGE CPP #-}
{-# LANGUAGE BangPatterns #-}

-- | Random reads of 4 KiB: @high@ by 'submitIO', from four Haskell threads for each capability, in batches of 32; @low@
-- by the queue of one thread, which adds 32 as soon as 32 of 128 have ended.
--
-- > randread high|low direct|cached FILE [READS] [registered]
module Main (main) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Control.Monad.Primitive (RealWorld)
import Data.Bits
import Data.Primitive.ByteArray
import qualified Data.Vector as V
import qualified Data.Vector.Unboxed as VU
import Data.Word
import GHC.Clock (getMonotonicTimeNSec)
import System.CPUTime (getCPUTime)
import System.Environment (getArgs)
import System.IO.BlockIO
import System.IO.Ringfile
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
    mode : how : path : more | mode `elem` ["high", "low"], how `elem` ["direct", "cached"] -> do
      fd <- if how == "direct" then openDirect path ReadOnly Nothing else openCached path
      -- Nothing is cached at the beginning; and no read-ahead, as in fio.
      fileAdvise fd 0 0 AdviceDontNeed
      fileAdvise fd 0 0 AdviceRandom
      blocks <- (`div` 4096) . fromIntegral . fileSize <$> getFdStatus fd
      let reads_ = case filter (/= "registered") more of
            [count] -> read count
            _ -> 262144
          around = if "registered" `elem` more then withRegistered else const id
      (if mode == "high" then high else low) around fd blocks reads_
    _ -> fail "usage: randread high|low direct|cached FILE [READS] [registered]"
  where
    openCached path = do
      _ <- getFileStatus path
#if MIN_VERSION_unix(2,8,0)
      Posix.openFd path ReadOnly defaultFileFlags
#else
      Posix.openFd path ReadOnly Nothing defaultFileFlags
#endif

-- | Runs an action with an array registered, or not.
type Around = MutableByteArray RealWorld -> IO () -> IO ()

high :: Around -> Fd -> Int -> Int -> IO ()
high around fd blocks total = do
  capabilities <- getNumCapabilities
  let tasks = 4 * capabilities
      batches = total `div` (32 * tasks)
      params = defaultIOCtxParams {ioctxBatchSizeLimit = 64, ioctxConcurrencyLimit = 256}
  memory <- newAlignedPinnedByteArray (tasks * 32 * 4096) 4096
  withIOCtx params $ \ctx -> around memory . report (batches * 32 * tasks) $ do
    ends <- forM [0 .. tasks - 1] $ \task -> do
      end <- newEmptyMVar
      _ <- forkOn task (try (run ctx memory task batches) >>= putMVar end)
      pure end
    forM_ ends (takeMVar >=> either (throwIO :: SomeException -> IO ()) pure)
  where
    run ctx memory task batches = go (0 :: Int) (seed task)
      where
        go !done !random = when (done < batches) $ do
          results <- submitIO ctx (batch fd memory (task * 32) blocks random 32)
          unless (VU.all (== IOResult 4096) results) $ fail ("a read failed: " ++ show results)
          go (done + 1) (iterate next random !! 32)

low :: Around -> Fd -> Int -> Int -> IO ()
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

-- | Prints reads a second, and processor time for one read.
report :: Int -> IO () -> IO ()
report total action = do
  performMajorGC
  began <- getMonotonicTimeNSec
  usedBefore <- getCPUTime
  action
  used <- subtract usedBefore <$> getCPUTime
  elapsed <- subtract began <$> getMonotonicTimeNSec
  printf "%d reads, %.0f a second, %.3f us of CPU time for one\n" total
    (fromIntegral total * 1e9 / fromIntegral elapsed :: Double)
    (fromIntegral used / 1e6 / fromIntegral total :: Double)
