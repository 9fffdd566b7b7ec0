from distcheck.cli import main

main()
