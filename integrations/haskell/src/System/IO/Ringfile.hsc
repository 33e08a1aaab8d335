-- | What ringfile adds to "System.IO.BlockIO".
module System.IO.Ringfile
  ( -- * Files
    openDirect,

    -- * Memory
    withRegistered,

    -- * A queue of one thread
    Queue,
    withQueue,
    addOps,
    waitResults,

    -- * Counters
    Counters (..),
    counters,
  )
where

import Control.Concurrent (runInBoundThread)
import Control.Exception (SomeException, bracket, mask, mask_, throwIO, try)
import Control.Monad
import Control.Monad.Primitive (RealWorld, touch)
import Data.Bits ((.|.))
import Data.IORef
import Data.Primitive.Array
import Data.Primitive.ByteArray
import Data.Primitive.PrimArray
import qualified Data.Vector as V
import qualified Data.Vector.Unboxed as VU
import qualified Data.Vector.Unboxed.Mutable as VUM
import Data.Word (Word64, Word8)
import Foreign.C.String (CString, withCString)
import Foreign.C.Types (CInt (..), CSize (..), CUInt (..))
import Foreign.ForeignPtr (ForeignPtr, withForeignPtr)
import Foreign.Marshal.Alloc (alloca, allocaBytes)
import Foreign.Ptr (Ptr, nullPtr, plusPtr)
import Foreign.StablePtr (newStablePtr)
import Foreign.Storable (peek, peekByteOff)
import GHC.IO.Exception (IOErrorType (ResourceBusy))
import System.IO.Ringfile.Internal
import System.Posix.IO (OpenMode (..))
import System.Posix.Types (Fd (..), FileMode)

#include "shim.h"
#include <fcntl.h>

-- | Opens a file for direct I\/O (@O_DIRECT@), past the page cache; with a mode, creates it if it does not exist.
-- Close the descriptor with 'System.Posix.IO.closeFd'. Direct writes must be aligned, usually to 512 or 4096 bytes:
-- their position in the file, their length, and the address of the memory ('newAlignedPinnedByteArray'). Reads need
-- not be, but cost a copy then.
openDirect :: FilePath -> OpenMode -> Maybe FileMode -> IO Fd
openDirect path how create = do
  fd <- withCString path $ \name -> c_open_direct name (access .|. creates) (maybe 0 fromIntegral create)
  failWith ("openDirect " ++ path) fd
  pure (Fd fd)
  where
    creates = maybe 0 (const #{const O_CREAT}) create
    access = case how of
      ReadOnly -> #{const O_RDONLY}
      WriteOnly -> #{const O_WRONLY}
      ReadWrite -> #{const O_RDWR}

-- | Registers a pinned array with the kernel while an action runs: operations on any part of it, by any function of
-- this package, take less processor time with direct I\/O, because the kernel need not look up and pin the memory
-- each time. Counts against @RLIMIT_MEMLOCK@; if that refuses it, operations work as before.
--
-- All operations on the array must have ended when the action ends: put 'withQueue' inside of the action. Otherwise the
-- array stays registered, and in memory, until the process ends. 'withRegistered' then throws 'ResourceBusy', or the
-- exception of the action if there is one.
withRegistered :: MutableByteArray RealWorld -> IO a -> IO a
withRegistered array action = do
  checkPinned array
  size <- getSizeofMutableByteArray array
  mask $ \restore -> do
    handle <- register size
    result <- try (restore action)
    unregistered <- c_memory_unregister handle
    -- The address range is still registered, so no other array may get it.
    when (unregistered < 0) $ void (newStablePtr array)
    touch array
    case result of
      Left exception -> throwIO (exception :: SomeException)
      Right value
        | unregistered < 0 ->
            throwError ResourceBusy "withRegistered" "wait for all operations on the array before the action ends"
        | otherwise -> pure value
  where
    register size = alloca $ \handle -> do
      c_memory_register (mutableByteArrayContents array) (fromIntegral size) handle >>= failWith "withRegistered"
      peek handle

-- | A queue of one thread, which keeps operations in flight and takes results in the order in which they end. It takes
-- no lock, and waiting blocks the OS thread.
data Queue = Queue
  { cQueue :: !(ForeignPtr CQueue),
    depth :: !Int,
    -- | The operations in flight, so that their arrays live; at the same place the caller's number of each.
    held :: !(MutableArray RealWorld (Maybe (IOOp RealWorld))),
    numbers :: !(MutablePrimArray RealWorld Word64),
    -- | The places that are free: as many as the second field says, from the front.
    places :: !(MutablePrimArray RealWorld Int),
    free :: !(MutablePrimArray RealWorld Int),
    -- | C's records of operations that are being added, and of results.
    scratch :: !(MutableByteArray RealWorld),
    -- | Results of operations that were refused.
    refused :: !(IORef [(Word64, IOResult)])
  }

-- | Runs an action with a queue for at most that many operations, in a bound thread: only this thread may use the
-- queue. Afterwards it cancels the operations whose results were not taken, and waits for them.
--
-- Asynchronous exceptions ('System.Timeout.timeout', 'Control.Concurrent.killThread') do not interrupt 'waitResults':
-- they arrive when it has returned. If the calling thread is not bound, the action runs in another thread; an exception
-- that is thrown to the calling thread arrives only when the action has ended.
--
-- In a child of 'System.Posix.Process.forkProcess', the queue cannot be used.
withQueue :: Int -> (Queue -> IO a) -> IO a
withQueue size action
  | size < 1 || size > 65535 = invalid "withQueue" "the number of operations is not from 1 to 65535"
  | otherwise = runInBoundThread (bracket create destroy action)
  where
    create = do
      queue <- newCQueue
      withForeignPtr queue (\at -> c_queue_create at (fromIntegral size) 0) >>= failWith "withQueue"
      allFree <- newPrimArray size
      forM_ [0 .. size - 1] $ \place -> writePrimArray allFree place (size - 1 - place)
      count <- newPrimArray 1
      writePrimArray count 0 size
      Queue queue size <$> newArray size Nothing <*> newPrimArray size <*> pure allFree <*> pure count
        <*> newPinnedByteArray (size * max opSize #{size ringfile_result})
        <*> newIORef []
    destroy queue = do
      withForeignPtr (cQueue queue) c_queue_free
      touch (held queue)

-- | Adds operations, numbered from the given number on. They start with 'waitResults'. Their arrays must not be used
-- until their results were taken. Throws 'GHC.IO.Exception.InvalidArgument', and adds nothing, if the queue has no room
-- for them, or if an operation is wrong as for 'System.IO.BlockIO.submitIO'.
addOps :: Queue -> Word64 -> V.Vector (IOOp RealWorld) -> IO ()
addOps queue firstNumber ops = do
  V.imapM_ checkOp ops
  room <- readPrimArray (free queue) 0
  when (V.length ops > room) $
    invalid "addOps" ("the queue has room for " ++ show room ++ " operations of " ++ show (depth queue))
  mask_ $ do
    V.iforM_ ops $ \index op -> do
      place <- readPrimArray (places queue) (room - 1 - index)
      writeArray (held queue) place (Just op)
      writePrimArray (numbers queue) place (firstNumber + fromIntegral index)
      pokeOp (record index) op
      opFlight (record index) nullPtr
      opUserData (record index) (fromIntegral place)
    writePrimArray (free queue) 0 (room - V.length ops)
    withForeignPtr (cQueue queue) $ \at -> c_add at (record 0) (fromIntegral (V.length ops))
    V.iforM_ ops $ \index _ -> do
      token <- opToken (record index)
      when (token == 0) $ do
        place <- readPrimArray (places queue) (room - 1 - index)
        result <- ofResult <$> opResult (record index)
        modifyIORef' (refused queue) ((firstNumber + fromIntegral index, result) :)
        writeArray (held queue) place Nothing
    keepRefused room
    touch (scratch queue)
  where
    record index = mutableByteArrayContents (scratch queue) `plusPtr` (index * opSize)
    -- Gives the places of refused operations back.
    keepRefused room = forM_ [room - V.length ops .. room - 1] $ \at -> do
      place <- readPrimArray (places queue) at
      op <- readArray (held queue) place
      case op of
        Just _ -> pure ()
        Nothing -> giveBack queue place

giveBack :: Queue -> Int -> IO ()
giveBack queue place = do
  count <- readPrimArray (free queue) 0
  writePrimArray (places queue) count place
  writePrimArray (free queue) 0 (count + 1)

-- | Submits the operations that were added, waits until at least that many of the queue's operations have ended (or
-- all, if there are fewer), and takes all results that are there, with their numbers. With 0 it does not wait.
waitResults :: Queue -> Int -> IO (VU.Vector (Word64, IOResult))
waitResults queue atLeast = mask_ $ do
  early <- VU.fromList . reverse <$> readIORef (refused queue)
  let wanted = max 0 (atLeast - VU.length early)
      buffer = mutableByteArrayContents (scratch queue)
  count <- withForeignPtr (cQueue queue) $ \at -> c_wait at buffer (fromIntegral (depth queue)) (fromIntegral wanted)
  failWith "waitResults" (fromIntegral (min 0 count))
  writeIORef (refused queue) []
  results <- VUM.unsafeNew (fromIntegral count)
  forM_ [0 .. fromIntegral count - 1] $ \index -> do
    let at = buffer `plusPtr` (index * #{size ringfile_result})
    place <- fromIntegral <$> (#{peek ringfile_result, user_data} at :: IO Word64)
    result <- ofResult <$> #{peek ringfile_result, result} at
    number <- readPrimArray (numbers queue) place
    writeArray (held queue) place Nothing
    giveBack queue place
    VUM.unsafeWrite results index (number, result)
  touch (scratch queue)
  taken <- VU.unsafeFreeze results
  pure (if VU.null early then taken else early VU.++ taken)

-- | Counters of the whole process since it began.
data Counters = Counters
  { -- | Operations that ended, successfully or not.
    operations :: !Word64,
    -- | Operations on registered memory.
    fixedOperations :: !Word64,
    bytesRead :: !Word64,
    bytesWritten :: !Word64,
    -- | System calls that submitted operations or waited for them.
    enters :: !Word64,
    -- | Operations that were cancelled, and that failed with an errno.
    cancelled, failed :: !Word64,
    -- | Operations that were plain calls on the thread that submitted them, or on worker threads. Those that are
    -- counted in neither went through a ring (or Linux AIO).
    inlineOperations, workerOperations :: !Word64
  }
  deriving (Eq, Show)

-- | Reads the counters. They include operations of other threads up to the last time these waited.
counters :: IO Counters
counters = allocaBytes #{size ringfile_counts} $ \at -> do
  c_counts at >>= failWith "counters"
  Counters <$> #{peek ringfile_counts, ops} at <*> #{peek ringfile_counts, fixed_ops} at
    <*> #{peek ringfile_counts, bytes_read} at <*> #{peek ringfile_counts, bytes_written} at
    <*> #{peek ringfile_counts, enters} at
    <*> #{peek ringfile_counts, cancelled} at <*> #{peek ringfile_counts, failed} at
    <*> #{peek ringfile_counts, inline_ops} at <*> #{peek ringfile_counts, worker_ops} at

data Memory

foreign import ccall safe "shim_open_direct" c_open_direct :: CString -> CInt -> CUInt -> IO CInt

foreign import ccall safe "ringfile_memory_register" c_memory_register :: Ptr Word8 -> CSize -> Ptr (Ptr Memory) -> IO CInt

foreign import ccall safe "ringfile_memory_unregister" c_memory_unregister :: Ptr Memory -> IO CInt

foreign import ccall safe "shim_counts" c_counts :: Ptr a -> IO CInt
