import Distribution.Simple (defaultMain)

main :: IO ()
main = defaultMain
