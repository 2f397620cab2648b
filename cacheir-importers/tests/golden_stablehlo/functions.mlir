module @golden {
  func.func public @main(%arg0: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) {
    %0 = stablehlo.exponential %arg0 : tensor<2x3xf32>
    %1 = stablehlo.tanh %arg0 : tensor<2x3xf32>
    %2 = stablehlo.logistic %arg0 : tensor<2x3xf32>
    %3 = stablehlo.cosine %arg0 : tensor<2x3xf32>
    %4 = stablehlo.sine %arg0 : tensor<2x3xf32>
    %5 = stablehlo.floor %arg0 : tensor<2x3xf32>
    %6 = stablehlo.ceil %arg0 : tensor<2x3xf32>
    %7 = stablehlo.round_nearest_even %arg0 : tensor<2x3xf32>
    %8 = stablehlo.sign %arg0 : tensor<2x3xf32>
    %9 = stablehlo.negate %arg0 : tensor<2x3xf32>
    %10 = stablehlo.abs %arg0 : tensor<2x3xf32>
    %11 = stablehlo.sqrt %10 : tensor<2x3xf32>
    %12 = stablehlo.log %10 : tensor<2x3xf32>
    return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
  }
}
