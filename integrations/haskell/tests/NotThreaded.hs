-- | Without @-threaded@, 'initIOCtx' throws an exception.
module Main (main) where

import Control.Exception (try)
import System.IO.BlockIO
import System.IO.Error (isIllegalOperation)

main :: IO ()
main = do
  made <- try (initIOCtx defaultIOCtxParams)
  case made of
    Left why | isIllegalOperation why -> putStrLn "ok initIOCtx refuses a runtime system without threads"
    Left why -> fail ("another exception: " ++ show why)
    Right _ -> fail "initIOCtx made a context"
