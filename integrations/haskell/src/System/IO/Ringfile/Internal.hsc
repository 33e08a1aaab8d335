{-# LANGUAGE DerivingStrategies #-}
{-# LANGUAGE MultiParamTypeClasses #-}
{-# LANGUAGE PatternSynonyms #-}
{-# LANGUAGE TypeFamilies #-}
{-# LANGUAGE ViewPatterns #-}

-- | Operations and their results, and the C functions of @cbits/shim.c@.
--
-- Invariant: whoever passes an operation's address to C keeps its array alive until C has given its result.
module System.IO.Ringfile.Internal
  ( IOOp (..),
    IOResult (IOResult, IOError),
    ofResult,
    checkOp,
    checkPinned,
    pokeOp,
    failWith,
    invalid,
    throwError,
    CQueue,
    newCQueue,
    Flight,
    Op,
    opSize,
    flightSize,
    flightOp,
    flightCount,
    flightOwner,
    setFlightOwner,
    flightEnded,
    flightNext,
    flightEndsIdleness,
    flightIsLast,
    opUserData,
    opFlight,
    opToken,
    opResult,
    c_queue_create,
    c_queue_free,
    c_queue_forget,
    c_start,
    c_start_quick,
    c_wait_ended,
    c_cancel,
    c_close,
    c_add,
    c_wait,
  )
where

import Control.Monad (unless)
import Control.Monad.Primitive (RealWorld)
import Data.Int (Int32, Int64)
import Data.Primitive.ByteArray
import qualified Data.Vector.Generic as VG
import qualified Data.Vector.Generic.Mutable as VGM
import qualified Data.Vector.Primitive as VP
import qualified Data.Vector.Unboxed as VU
import qualified Data.Vector.Unboxed.Mutable as VUM
import Data.Word (Word32, Word64, Word8)
import Foreign.C.Error (Errno (..), errnoToIOError)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, withForeignPtr)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, plusPtr, ptrToWordPtr)
import Foreign.Storable (peekByteOff, pokeByteOff)
import GHC.IO.Exception (IOErrorType (..))
import System.IO.Error (ioeSetErrorString, mkIOError)
import System.Posix.Types (ByteCount, Fd (..), FileOffset)

#include "shim.h"

-- | An operation on bytes of a file: its descriptor, the position in the file, the memory, the position in the memory,
-- and the number of bytes. The array must be pinned, and must not be used while the operation is carried out.
data IOOp s
  = IOOpRead !Fd !FileOffset !(MutableByteArray s) !Int !ByteCount
  | IOOpWrite !Fd !FileOffset !(MutableByteArray s) !Int !ByteCount

-- | The result of one operation: the number of bytes, or an errno.
newtype IOResult = IOResult_ Int
  deriving stock (Eq, Show)

{-# COMPLETE IOResult, IOError #-}

-- | The number of bytes that were read or written.
pattern IOResult :: ByteCount -> IOResult
pattern IOResult count <- (asCount -> Just count)
  where
    IOResult count = IOResult_ (fromIntegral count)

-- | Why the operation failed.
pattern IOError :: Errno -> IOResult
pattern IOError errno <- (asErrno -> Just errno)
  where
    IOError (Errno errno) = IOResult_ (negate (fromIntegral errno))

asCount :: IOResult -> Maybe ByteCount
asCount (IOResult_ n)
  | n >= 0 = Just (fromIntegral n)
  | otherwise = Nothing

asErrno :: IOResult -> Maybe Errno
asErrno (IOResult_ n)
  | n < 0 = Just (Errno (fromIntegral (negate n)))
  | otherwise = Nothing

ofResult :: Int64 -> IOResult
ofResult = IOResult_ . fromIntegral

newtype instance VUM.MVector s IOResult = MV_IOResult (VP.MVector s Int)

newtype instance VU.Vector IOResult = V_IOResult (VP.Vector Int)

-- By hand, because vector 0.12 does not allow to derive them.
instance VGM.MVector VUM.MVector IOResult where
  basicLength (MV_IOResult v) = VGM.basicLength v
  {-# INLINE basicLength #-}
  basicUnsafeSlice from count (MV_IOResult v) = MV_IOResult (VGM.basicUnsafeSlice from count v)
  {-# INLINE basicUnsafeSlice #-}
  basicOverlaps (MV_IOResult v) (MV_IOResult w) = VGM.basicOverlaps v w
  {-# INLINE basicOverlaps #-}
  basicUnsafeNew count = MV_IOResult <$> VGM.basicUnsafeNew count
  {-# INLINE basicUnsafeNew #-}
  basicInitialize (MV_IOResult v) = VGM.basicInitialize v
  {-# INLINE basicInitialize #-}
  basicUnsafeRead (MV_IOResult v) at = IOResult_ <$> VGM.basicUnsafeRead v at
  {-# INLINE basicUnsafeRead #-}
  basicUnsafeWrite (MV_IOResult v) at (IOResult_ n) = VGM.basicUnsafeWrite v at n
  {-# INLINE basicUnsafeWrite #-}

instance VG.Vector VU.Vector IOResult where
  basicUnsafeFreeze (MV_IOResult v) = V_IOResult <$> VG.basicUnsafeFreeze v
  {-# INLINE basicUnsafeFreeze #-}
  basicUnsafeThaw (V_IOResult v) = MV_IOResult <$> VG.basicUnsafeThaw v
  {-# INLINE basicUnsafeThaw #-}
  basicLength (V_IOResult v) = VG.basicLength v
  {-# INLINE basicLength #-}
  basicUnsafeSlice from count (V_IOResult v) = V_IOResult (VG.basicUnsafeSlice from count v)
  {-# INLINE basicUnsafeSlice #-}
  basicUnsafeIndexM (V_IOResult v) at = IOResult_ <$> VG.basicUnsafeIndexM v at
  {-# INLINE basicUnsafeIndexM #-}

instance VU.Unbox IOResult

-- | Throws an exception unless the array is pinned and the operation stays within it.
checkOp :: Int -> IOOp RealWorld -> IO ()
checkOp index op = case op of
  IOOpRead _ _ array start count -> check array start count
  IOOpWrite _ _ array start count -> check array start count
  where
    check array start count = do
      checkPinned array
      size <- getSizeofMutableByteArray array
      unless (start >= 0 && start <= size && count <= fromIntegral (size - start)) $
        invalid "IOOp is outside of its MutableByteArray" $
          "operation " ++ show index ++ ": " ++ show count ++ " bytes at " ++ show start ++ " of " ++ show size
{-# INLINE checkOp #-}

checkPinned :: MutableByteArray RealWorld -> IO ()
checkPinned array = unless (isMutableByteArrayPinned array) $ invalid "MutableByteArray is unpinned" ""
{-# INLINE checkPinned #-}

-- | Fills C's record of an operation. Its array is pinned: the address stays valid as long as the array lives.
pokeOp :: Ptr Op -> IOOp RealWorld -> IO ()
pokeOp at op = case op of
  IOOpRead fd offset array start count -> poke (#{const RINGFILE_OP_READ}) fd offset array start count
  IOOpWrite fd offset array start count -> poke (#{const RINGFILE_OP_WRITE}) fd offset array start count
  where
    poke :: Word32 -> Fd -> FileOffset -> MutableByteArray RealWorld -> Int -> ByteCount -> IO ()
    poke kind (Fd fd) offset array start count = do
      let address = ptrToWordPtr (mutableByteArrayContents array `plusPtr` start)
      #{poke shim_op, data} at (fromIntegral address :: Word64)
      #{poke shim_op, length} at (fromIntegral count :: Word64)
      #{poke shim_op, offset} at (fromIntegral offset :: Word64)
      #{poke shim_op, fd} at (fromIntegral fd :: Int32)
      #{poke shim_op, kind} at kind
{-# INLINE pokeOp #-}

-- | Throws an exception with a place ('GHC.IO.Exception.ioe_location') and details. As in blockio-uring, the place of its
-- errors says what is wrong: programs compare it.
throwError :: IOErrorType -> String -> String -> IO a
throwError kind place details = ioError (ioeSetErrorString (mkIOError kind place Nothing Nothing) details)

invalid :: String -> String -> IO a
invalid = throwError InvalidArgument

-- | Throws the exception of a negative errno.
failWith :: String -> CInt -> IO ()
failWith place result
  | result >= 0 = pure ()
  | otherwise = ioError (errnoToIOError place (Errno (negate result)) Nothing Nothing)

data CQueue

data Flight

data Op

-- | Allocates memory for a queue. The garbage collector frees it, so it outlives all calls of C's functions.
newCQueue :: IO (ForeignPtr CQueue)
newCQueue = do
  queue <- mallocForeignPtrBytes #{size shim_queue}
  withForeignPtr queue $ \at -> fillBytes at 0 #{size shim_queue}
  pure queue

opSize :: Int
opSize = #{size shim_op}

flightSize :: Int -> Int
flightSize count = #{size shim_flight} + count * opSize

flightOp :: Ptr Flight -> Int -> Ptr Op
flightOp flight index = flight `plusPtr` (#{size shim_flight} + index * opSize)

flightCount :: Ptr Flight -> Int -> IO ()
flightCount flight count = #{poke shim_flight, count} flight (fromIntegral count :: CSize)

flightOwner :: Ptr Flight -> IO (Ptr ())
flightOwner = #{peek shim_flight, owner}

setFlightOwner :: Ptr Flight -> Ptr () -> IO ()
setFlightOwner = #{poke shim_flight, owner}

flightEnded, flightNext :: Ptr Flight -> IO (Ptr Flight)
flightEnded = #{peek shim_flight, ended}
flightNext = #{peek shim_flight, next}

flightEndsIdleness, flightIsLast :: Ptr Flight -> IO Bool
flightEndsIdleness flight = (/= (0 :: CInt)) <$> #{peek shim_flight, ends_idleness} flight
flightIsLast flight = (/= (0 :: CInt)) <$> #{peek shim_flight, is_last} flight

opUserData :: Ptr Op -> Word64 -> IO ()
opUserData = #{poke shim_op, user_data}

opFlight :: Ptr Op -> Ptr Flight -> IO ()
opFlight = #{poke shim_op, flight}

opToken :: Ptr Op -> IO Word64
opToken = #{peek shim_op, token}

opResult :: Ptr Op -> IO Int64
opResult = #{peek shim_op, result}

foreign import ccall safe "shim_queue_create" c_queue_create :: Ptr CQueue -> CSize -> CInt -> IO CInt

foreign import ccall safe "shim_queue_free" c_queue_free :: Ptr CQueue -> IO ()

foreign import ccall safe "shim_queue_forget" c_queue_forget :: Ptr CQueue -> IO ()

foreign import ccall safe "shim_start" c_start :: Ptr CQueue -> Ptr Flight -> IO CInt

-- | Other Haskell threads of the capability wait meanwhile, and garbage collections do not start.
foreign import ccall unsafe "shim_start" c_start_quick :: Ptr CQueue -> Ptr Flight -> IO CInt

foreign import ccall safe "shim_wait_ended" c_wait_ended :: Ptr CQueue -> IO (Ptr Flight)

foreign import ccall safe "shim_cancel" c_cancel :: Ptr CQueue -> Ptr Flight -> IO ()

foreign import ccall safe "shim_close" c_close :: Ptr CQueue -> IO CInt

foreign import ccall safe "shim_add" c_add :: Ptr CQueue -> Ptr Op -> CSize -> IO ()

foreign import ccall safe "shim_wait" c_wait :: Ptr CQueue -> Ptr Word8 -> CSize -> CSize -> IO Int64
