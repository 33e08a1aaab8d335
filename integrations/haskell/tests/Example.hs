import Data.Primitive.ByteArray (newAlignedPinnedByteArray)
import qualified Data.Vector as V
import qualified Data.Vector.Unboxed as VU
import System.Environment (getArgs)
import System.IO.BlockIO
import System.IO.Ringfile (openDirect)
import System.Posix.IO (OpenMode (ReadOnly))

main :: IO ()
main = do
  [path] <- getArgs
  fd <- openDirect path ReadOnly Nothing -- or any other descriptor
  array <- newAlignedPinnedByteArray (2 * 4096) 4096
  withIOCtx defaultIOCtxParams $ \ctx -> do
    results <- submitIO ctx $ V.fromList
      [ IOOpRead fd 0 array 0 4096,
        IOOpRead fd (1024 * 1024) array 4096 4096
      ]
    print [count | IOResult count <- VU.toList results]
