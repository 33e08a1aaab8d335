-- | Batches of reads and writes from any number of Haskell threads. A thread that has submitted a batch waits for it
-- like for an 'MVar': other Haskell threads run, and it occupies no OS thread.
--
-- The functions and types are those of the package blockio-uring.
module System.IO.BlockIO
  ( -- * I\/O context
    IOCtx,
    IOCtxParams (..),
    defaultIOCtxParams,
    withIOCtx,
    initIOCtx,
    closeIOCtx,

    -- * Batches
    submitIO,
    IOOp (IOOpRead, IOOpWrite),
    IOResult (IOResult, IOError),
    ByteCount,
    Errno (..),
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Control.Monad.Primitive (RealWorld, touch)
import Data.Foldable (for_)
import qualified Data.Vector as V
import qualified Data.Vector.Unboxed as VU
import qualified Data.Vector.Unboxed.Mutable as VUM
import Foreign.C.Error (Errno (..))
import Foreign.ForeignPtr (ForeignPtr, withForeignPtr)
import Foreign.Marshal.Alloc (free, mallocBytes)
import Foreign.Ptr (Ptr, nullPtr)
import Foreign.StablePtr
import GHC.IO.Exception (IOErrorType (ResourceVanished, UnsupportedOperation))
import System.IO.Error (illegalOperationErrorType)
import System.IO.Ringfile.Internal
import System.Posix.Process (getProcessID)
import System.Posix.Types (ByteCount, ProcessID)

-- | What threads submit batches to. It has a queue for each capability.
data IOCtx = IOCtx
  { batchLimit :: !Int,
    queues :: !(V.Vector Queue),
    -- | Releases files that the program has closed.
    sweeper :: !ThreadId,
    -- | Whether the context is closed.
    isClosed :: !(MVar Bool),
    -- | The process that created it.
    process :: !ProcessID
  }

data Queue = Queue
  { cQueue :: !(ForeignPtr CQueue),
    -- | The operations that may still be submitted.
    room :: !QSemN,
    -- | Held by the thread that waits for room: a 'QSemN' by itself lets small batches overtake large ones for ever.
    turn :: !(MVar ()),
    -- | Filled when the queue is closed and its last batch has ended.
    drained :: !(MVar ()),
    -- | Filled when the collector must wait for results again.
    isBusy :: !(MVar ()),
    -- | Waits for results while no other thread takes them, and wakes the owners of batches.
    collector :: !ThreadId
  }

-- | Limits of an 'IOCtx', for each capability.
data IOCtxParams = IOCtxParams
  { -- | The most operations that are submitted together, from 1 to 2^15 - 1. 'submitIO' divides larger batches.
    ioctxBatchSizeLimit :: !Int,
    -- | The most operations in flight, at most 2^16 - 1 and at least 'ioctxBatchSizeLimit'. With more, 'submitIO'
    -- blocks the calling thread until others have ended.
    ioctxConcurrencyLimit :: !Int,
    -- | Has no effect: the kernel's own setting stays.
    ioctxIOWaitMetrics :: !Bool
  }
  deriving (Show)

-- | Batches of 64, and 192 operations in flight.
defaultIOCtxParams :: IOCtxParams
defaultIOCtxParams = IOCtxParams {ioctxBatchSizeLimit = 64, ioctxConcurrencyLimit = 64 * 3, ioctxIOWaitMetrics = True}

checkParams :: IOCtxParams -> Maybe String
checkParams params
  | batch <= 0 = Just "the batch size limit is non-positive"
  | batch >= 2 ^ (15 :: Int) = Just "the batch size limit is greater than or equal to 2^15"
  | concurrency <= 0 = Just "the concurrency limit is non-positive"
  | concurrency >= 2 ^ (16 :: Int) = Just "the concurrency limit is greater than or equal to 2^16"
  | batch > concurrency = Just "the batch size limit exceeds the concurrency limit"
  | otherwise = Nothing
  where
    batch = ioctxBatchSizeLimit params
    concurrency = ioctxConcurrencyLimit params

-- | Runs an action with a context, and closes it.
withIOCtx :: IOCtxParams -> (IOCtx -> IO a) -> IO a
withIOCtx params = bracket (initIOCtx params) closeIOCtx

-- | Creates a context, with a queue for each capability that there is now. Throws an 'IOException' if the program is
-- not linked with @-threaded@, and 'GHC.IO.Exception.InvalidArgument' if a limit is out of range.
--
-- A child of 'System.Posix.Process.forkProcess' cannot use a context of its parent: there, 'submitIO' and 'closeIOCtx'
-- throw 'UnsupportedOperation'. It can create one of its own; operations there that need one of the library's worker
-- threads, as all do without io_uring, fail with @EOPNOTSUPP@.
initIOCtx :: IOCtxParams -> IO IOCtx
initIOCtx params = do
  unless rtsSupportsBoundThreads $
    throwError
      illegalOperationErrorType
      "The run-time system should be threaded, make sure you are passing the -threaded flag"
      ""
  for_ (checkParams params) $ \why -> invalid ("IOCtxParams are invalid because " ++ why) ""
  capabilities <- getNumCapabilities
  mask_ $ do
    made <- openQueues capabilities []
    thread <- forkIOWithUnmask $ \unmask -> unmask . forever $ do
      threadDelay 1000000
      for_ made $ \queue -> withForeignPtr (cQueue queue) c_queue_forget
    IOCtx (ioctxBatchSizeLimit params) (V.fromList made) thread <$> newMVar False <*> getProcessID
  where
    openQueues :: Int -> [Queue] -> IO [Queue]
    openQueues 0 made = pure made
    openQueues left made = do
      queue <- openQueue (left - 1) (ioctxConcurrencyLimit params) `onException` for_ made freeQueue
      openQueues (left - 1) (queue : made)

openQueue :: Int -> Int -> IO Queue
openQueue capability limit = do
  queue <- newCQueue
  withForeignPtr queue (\at -> c_queue_create at (fromIntegral limit) 1) >>= failWith "setupURing"
  busy <- newEmptyMVar
  thread <- mask_ . forkOn capability $ collect queue busy
  Queue queue <$> newQSemN limit <*> newMVar () <*> newEmptyMVar <*> pure busy <*> pure thread

-- | Closes a queue without batches.
freeQueue :: Queue -> IO ()
freeQueue queue = do
  killThread (collector queue)
  withForeignPtr (cQueue queue) c_queue_free

-- | Wakes the owners of batches that have ended, until the thread is killed while nothing is in flight. Called with
-- exceptions masked.
--
-- In the foreign call, the thread sleeps in the ring itself. The kernel ends an operation on the OS thread that has
-- submitted it: usually this one, since the owners of batches run on it before it waits again.
collect :: ForeignPtr CQueue -> MVar () -> IO ()
collect queue busy = forever $ do
  ended <- withForeignPtr queue c_wait_ended
  if ended == nullPtr then takeMVar busy else wake ended >> yield

-- | Cancels the operations that the kernel still can cancel (results: @ECANCELED@), waits until all batches have ended,
-- and closes the context. Later calls of 'submitIO' throw 'ResourceVanished'. May be called twice.
closeIOCtx :: IOCtx -> IO ()
closeIOCtx ctx = do
  checkProcess ctx
  modifyMVar_ (isClosed ctx) $ \closed -> do
    unless closed $ do
      busy <- V.forM (queues ctx) $ \queue -> withForeignPtr (cQueue queue) c_close
      V.forM_ (V.zip busy (queues ctx)) $ \(is_busy, queue) -> when (is_busy /= 0) (readMVar (drained queue))
      killThread (sweeper ctx)
      V.forM_ (queues ctx) freeQueue
    pure True

-- | Throws an exception in a forked child, where a lock can be held, and room taken, by threads that are not there.
checkProcess :: IOCtx -> IO ()
checkProcess ctx = do
  here <- getProcessID
  when (here /= process ctx) $ throwError UnsupportedOperation "IOCtx created before forkProcess" ""

-- | Carries out a batch of any size, and returns when all of its operations have ended, with their results in the same
-- order. Errors of operations are results. Only the calling Haskell thread waits.
--
-- Operations are carried out in any order. A read has fewer bytes than asked for only at the end of the file.
--
-- If an asynchronous exception interrupts the wait, the operations are cancelled, and the exception is rethrown as soon
-- as the kernel no longer uses the arrays: what a disk has begun runs to its end.
--
-- Throws 'GHC.IO.Exception.InvalidArgument', before anything is submitted, if an array is not pinned or an operation
-- does not stay within its array, and 'ResourceVanished' if the context is closed.
--
-- If the context is closed before all parts of a batch of more than 'ioctxBatchSizeLimit' operations were submitted,
-- 'submitIO' waits for the parts that were, and throws 'ResourceVanished'. Any of their operations may have been
-- carried out; those of the other parts were not.
submitIO :: IOCtx -> V.Vector (IOOp RealWorld) -> IO (VU.Vector IOResult)
submitIO ctx ops = do
  V.imapM_ checkOp ops
  checkProcess ctx
  (capability, _) <- threadCapability =<< myThreadId
  let queue = queues ctx `V.unsafeIndex` (capability `mod` V.length (queues ctx))
  results <- VUM.unsafeNew (V.length ops)
  mask_ (carryOut ctx queue ops results)
  VU.unsafeFreeze results

-- | Submits the operations, as several batches if they are too many, and waits. Called with exceptions masked.
carryOut :: IOCtx -> Queue -> V.Vector (IOOp RealWorld) -> VUM.MVector RealWorld IOResult -> IO ()
carryOut ctx queue ops results = do
  let (now, later) = V.splitAt (batchLimit ctx) ops
  batch <- start queue now
  unless (V.null later) $
    carryOut ctx queue later (VUM.unsafeDrop (V.length now) results) `onException` abandon queue batch
  takeMVar (hasEnded batch) `onException` abandon queue batch
  -- Not over a list, which would be allocated.
  let copy index = when (index < V.length now) $ do
        opResult (flightOp (address batch) index) >>= VUM.unsafeWrite results index . ofResult
        copy (index + 1)
  copy 0
  finish batch

-- | A batch in a queue.
data Batch = Batch
  { -- | C's record, outside of Haskell's heap: it brings no garbage collection nearer.
    address :: !(Ptr Flight),
    owner :: !(StablePtr Owner),
    hasEnded :: !(MVar ()),
    -- | Has the arrays, which must live until the batch has ended.
    operations :: !(V.Vector (IOOp RealWorld))
  }

-- | How a batch's thread is told of its end. A root of the garbage collector: it keeps the thread alive that waits for
-- the MVar, and with it the arrays. The second MVar is the queue's 'drained'.
data Owner = Owner !(MVar ()) !QSemN !Int !(MVar ())

start :: Queue -> V.Vector (IOOp RealWorld) -> IO Batch
start queue ops = do
  let count = V.length ops
  withMVar (turn queue) $ \_ -> waitQSemN (room queue) count
  flight <- mallocBytes (flightSize count)
  end <- newEmptyMVar
  stable <- newStablePtr (Owner end (room queue) count (drained queue))
  let batch = Batch flight stable end ops
  setFlightOwner flight (castStablePtrToPtr stable)
  flightCount flight count
  V.imapM_ (pokeOp . flightOp flight) ops
  let call = if isQuick ops then c_start_quick else c_start
  result <- withForeignPtr (cQueue queue) $ \at -> call at flight
  when (result /= 0) $ do
    finish batch
    signalQSemN (room queue) count
    throwError ResourceVanished "IOCtx closed" ""
  flightEnded flight >>= wake
  endsIdleness <- flightEndsIdleness flight
  when endsIdleness $ putMVar (isBusy queue) ()
  pure batch

-- | Returns whether submitting the batch takes no longer than a garbage collection may be put off: reads of at most
-- 256 KiB in total, where each counts as 4 KiB or more. Writes can wait for the file system, and large reads of cached
-- data are long copies.
isQuick :: V.Vector (IOOp s) -> Bool
isQuick ops = V.foldl' (\total op -> total + cost op) 0 ops <= most -- not V.sum, which makes a vector of costs
  where
    most = 262144
    cost (IOOpRead _ _ _ _ count) = max 4096 count
    cost IOOpWrite {} = most + 1

-- | Wakes the owners of batches that have ended.
wake :: Ptr Flight -> IO ()
wake flight = unless (flight == nullPtr) $ do
  Owner end semaphore count queueDrained <- flightOwner flight >>= deRefStablePtr . castPtrToStablePtr
  -- Before the owner frees it.
  next <- flightNext flight
  isLast <- flightIsLast flight
  signalQSemN semaphore count
  putMVar end ()
  when isLast $ putMVar queueDrained ()
  wake next

-- | Cancels a batch, and waits for its end.
abandon :: Queue -> Batch -> IO ()
abandon queue batch = do
  withForeignPtr (cQueue queue) $ \at -> c_cancel at (address batch)
  uninterruptibleMask_ (takeMVar (hasEnded batch))
  finish batch

-- | Lets go of a batch that has ended.
finish :: Batch -> IO ()
finish batch = do
  freeStablePtr (owner batch)
  free (address batch)
  touch (operations batch)
