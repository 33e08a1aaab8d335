-- | Without @-threaded@, 'initIOCtx' throws an exception.
module Main (main) where

import Control.Exception (try)
import GHC.IO.Exception (ioe_location)
import System.IO.BlockIO
import System.IO.Error (isIllegalOperation)

main :: IO ()
main = do
  made <- try (initIOCtx defaultIOCtxParams)
  case made of
    Left why | isIllegalOperation why, ioe_location why == place -> putStrLn "ok initIOCtx refuses a runtime system without threads"
    Left why -> fail ("another exception: " ++ show why)
    Right _ -> fail "initIOCtx made a context"
  where
    place = "The run-time system should be threaded, make sure you are passing the -threaded flag"
